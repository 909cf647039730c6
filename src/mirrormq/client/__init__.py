"""Small clients for our own tools, of the HTTP admin API and of AMQP. They never import the broker."""
