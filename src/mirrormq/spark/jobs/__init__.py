"""The pipeline's jobs: `mirrormq pipeline JOB ...`, or any of these files with spark-submit
(docs/pipeline.md).
"""
