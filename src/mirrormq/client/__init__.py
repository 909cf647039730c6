"""Small clients for our own tools: `admin` speaks the HTTP admin API. It never imports the broker."""
