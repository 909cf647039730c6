"""Orders of a queue as a table, and what every customer has ordered.

`orders` is a streaming table: every run adds what has come to the queue since the last one, each message
once, whoever consumes it meanwhile. `orders_by_customer` is a view that every run computes anew.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

QUEUE = os.environ.get("ORDERS_QUEUE", "orders")
URL = os.environ.get("MIRRORMQ_URL", "amqp://guest@127.0.0.1:5672/")
ORDER = "number INT, customer STRING, price INT"


@dp.table
def orders() -> DataFrame:
    """One row per message."""
    spark = SparkSession.active()
    messages = (
        spark.readStream.format("mirrormq")
        .option("url", URL)
        .option("queue", QUEUE)
        .option("cursor", "declarative-orders")
        .load()
    )
    order = f.from_json(f.col("body").cast("string"), ORDER).alias("order")
    return messages.select("queue_id", "epoch", "seq", "timestamp", "message_id", order).select(
        "queue_id", "epoch", "seq", "timestamp", "message_id", "order.*"
    )


@dp.materialized_view
def orders_by_customer() -> DataFrame:
    """Number and price of the orders of every customer."""
    known = SparkSession.active().read.table("orders")
    return known.groupBy("customer").agg(f.count(f.lit(1)).alias("orders"), f.sum("price").alias("price"))
