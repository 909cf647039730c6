# One target per task; each is also a command a person can type.
.PHONY: kill cluster-kill etcd-kill mirror-kill spark-kill cluster campaign campaign-raft campaign-cluster campaign-mirror campaign-sink ha-campaign setup build run test quick lint types fmt unit tidy fuzz bench clean

setup:
	bash -c '. tools/setup.sh && prepare dev'

build: setup

run:
	./run

test:
	./test

quick:
	./test quick

lint tidy unit interop fuzz integration cluster:
	./test $@

types: setup
	.venv/bin/mypy

fmt: setup
	.venv/bin/ruff check --fix . && .venv/bin/ruff format .

clean:
	rm -rf build dist src/mirrormq/kernel/*.so

# Long targets: rounds of kill -9 under load, and an hour of simulated crashes.
kill: setup
	.venv/bin/python -m tests.integration.killrun --rounds 50

cluster-kill: setup
	.venv/bin/python -m tests.cluster.killrun --nodes 3 --rounds 20
	.venv/bin/python -m tests.cluster.killrun --nodes 5 --rounds 20

etcd-kill: setup
	.venv/bin/python -m tests.cluster.etcdrun --nodes 3 --faults 40

mirror-kill: setup
	.venv/bin/python -m tests.cluster.mirrorrun --nodes 3 --faults 70
	.venv/bin/python -m tests.cluster.mirrorrun --nodes 5 --faults 50

spark-kill: setup
	bash -c '. tools/setup.sh && prepare_spark'
	.venv/bin/pytest -m slow tests/spark

campaign: setup
	.venv/bin/python -m mirrormq.sim log --seconds 3600

campaign-raft: setup
	.venv/bin/python -m mirrormq.sim raft --seconds 3600
	.venv/bin/python -m mirrormq.sim meta --seconds 600
	.venv/bin/python -m mirrormq.sim etcd --seconds 600

campaign-mirror: setup
	.venv/bin/python -m mirrormq.sim mirror --seconds 3600

campaign-sink: setup
	.venv/bin/python -m mirrormq.sim sink --seconds 3600

# Many seeds of whole nodes with mirrored queues, on all cores: FIRST=1 SEEDS=10000
FIRST ?= 1
SEEDS ?= 10000
ha-campaign: setup
	.venv/bin/python -m mirrormq.sim ha --seeds $(FIRST)-$$(($(FIRST) + $(SEEDS) - 1)) --jobs $$(nproc)

campaign-cluster: setup
	.venv/bin/python -m mirrormq.sim cluster --seconds 3600
