# All that CI runs, a developer can run: make check test. The environment is .venv; a PYTHON that is
# asked for, and is not the one of .venv, has an environment of its own: .venv-3.13, say.

PYTHON ?= python3
VENV := .venv
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard .venv/bin/python),)
SERIES := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(wildcard .venv/bin/python$(SERIES)),)
VENV := .venv-$(SERIES)
endif
endif
endif
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
USERS := $(VENV)/.installed-all
EXTRA ?= base

.PHONY: demo test quick browser chaos clients clusters fuzz fuzz-guided flower ray check docs extra wheel ranges bench soak bench-peers numbers study clean

demo: $(firstword $(wildcard $(STAMP)) $(USERS))  ## a whole federation on this machine, in half a minute
	$(BIN)/secureps up policies/digits.toml

# Kernels are compiled once, and not by three processes at the same time.
test: $(STAMP)
	$(BIN)/secureps warm
	$(BIN)/pytest -n 3 --dist worksteal

quick: $(STAMP)  ## the tests that are short and start no process, in under two minutes
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

browser: $(VENV)/.browser  ## the dashboard in a headless Chromium (SECUREPS_CHROMIUM), beside a run whose shard is killed
	SECUREPS_BROWSER=1 $(BIN)/pytest -n 0 -s tests/browser

# Real processes as root, in namespaces of their own, and not at all where there can be none.
chaos: $(STAMP)  ## 1,000 seeds of simulated faults (0.6 s of a core each), 50 of real processes; SEED=7 or REAL=7 plays one alone
ifeq ($(REAL),)
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults '$(FAULTS)')
endif
ifeq ($(SEED),)
	$(BIN)/python -m tests.chaos.real $(if $(REAL),--seed $(REAL) $(if $(FAULTS),--faults '$(FAULTS)'))
endif

fuzz: $(STAMP)  ## a million hostile inputs: every decoder, running servers, handshakes; SEED=7 draws others
	$(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) $(if $(TARGET),--target $(TARGET))

# In a network with loopback alone, where one can be made: Ray listens on all there is.
# Root keeps its other users, whom a test plays; anybody else is made the root of a network without.
flower: $(STAMP)  ## private apps inside Flower's deployment and simulation: kills, lies; half an hour
	alone="unshare --net"; $$alone true 2>/dev/null || alone="unshare --map-root-user --net"; \
	$$alone true 2>/dev/null || alone=; \
	SECUREPS_FLOWER=1 $$alone sh -c 'ip link set lo up 2>/dev/null; exec "$$@"' -- \
		$(BIN)/pytest -n 0 tests/processes/test_flower.py

# Guided by what an input reaches, for as long as it may take; atheris is for this alone.
fuzz-guided: $(VENV)/.atheris  ## one TARGET by atheris (coverage), SECONDS of it; runs/fuzz has what it found
	$(BIN)/python -m tests.fuzz.guided $(TARGET) $(or $(SECONDS),60)

clusters: $(STAMP)  ## docs/deploy.md, played: pods in network namespaces, batch jobs, an image; minutes
	SECUREPS_CLUSTERS=1 $(BIN)/pytest -rs tests/processes/test_clusters.py

ray: $(VENV)/.ray  ## simulations on a Ray cluster: the same bits on 1 and 4 raylets, a worker that dies; a minute
	SECUREPS_RAY=1 $(BIN)/pytest tests/run/simulate/test_ray_cluster.py

# On systems that development does not have, continuous integration runs the same without make.
clients: $(STAMP)  ## what holds on every kind of machine: the same bits by both kinds of kernels; a minute
	$(BIN)/python -I tests/kits/client_check.py
	$(BIN)/python -m pytest @tests/portable.txt

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest tests/project/test_links.py

docs: $(VENV)/.docs  ## the site, in site/; any warning fails it, a broken link too (-q would hide them)
	$(BIN)/mkdocs build --strict

# What pip builds from lies in build/, and would be built again from there.
extra:  ## installs the package with one EXTRA ("base" for none, "all"), and checks what users get
	rm -rf build .venv-extra
	$(PYTHON) -m venv .venv-extra
	.venv-extra/bin/pip install '.$(if $(filter base,$(EXTRA)),,[$(EXTRA)])'
	.venv-extra/bin/python -I tests/kits/extras_check.py $(EXTRA)

wheel:  ## dist/: the wheel, the same bytes wherever it is built, and its SBOM, of what pip installs with it (EXTRA)
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -I tests/kits/wheel.py dist $(EXTRA)

ranges:  ## the lowest and the newest of the libraries that users may have (END); gigabytes, half an hour
	for end in $(or $(END),lowest newest); do \
		rm -rf .venv-$$end && $(PYTHON) -m venv .venv-$$end || exit 1; \
		$(PYTHON) -I tests/kits/ranges.py $$end > .venv-$$end/requirements.txt || exit 1; \
		.venv-$$end/bin/pip install -r .venv-$$end/requirements.txt || exit 1; \
		.venv-$$end/bin/python -m pytest -n 0 --timeout=900 @tests/ranges.txt || exit 1; \
	done

bench: $(STAMP)  ## costs, side by side with peers; see benchmarks/README.md
	@for name in demo startup ciphers version memory virtual; do \
		echo "== $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; \
	done

soak: $(STAMP)  ## 1,000 clients push for SECONDS (600) while connections are cut; fails where a promise is broken
	$(BIN)/python -m benchmarks.soak --seconds $(or $(SECONDS),600) --clients $(or $(CLIENTS),1000)

bench-peers: $(STAMP)  ## other systems beside this one, in environments of their own; see docs/benchmarks.md
	$(BIN)/python -m benchmarks.peers $(PEERS)

numbers: $(STAMP)  ## figures of the pages, measured again: what differs by more than its spread
	$(BIN)/python -m benchmarks.figures

study: $(STAMP)  ## rules by virtual time to a target, and what a codec loses; half an hour of two quiet cores
	$(BIN)/secureps study simulations/stragglers.toml
	$(BIN)/secureps study simulations/ctr.toml
	$(BIN)/python -m benchmarks.thin

clean:  ## caches and runs; environments stay
	rm -rf runs build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find secureps clients tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(VENV): $(STAMP)

# torch first and by itself, so that opacus does not choose another one. Once the stamp is
# there, no network is needed. Who looks at the demo is spared what tests need.
$(STAMP): WITH := dev
$(USERS): WITH := all
$(STAMP) $(USERS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "secureps needs Python 3.11 or newer: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install torch==2.13.0
	$(BIN)/pip install -e '.[$(WITH)]'
	touch $@

$(VENV)/.ray: $(STAMP)
	$(BIN)/pip install -e '.[ray]'
	touch $@

$(VENV)/.atheris: $(STAMP)
	$(BIN)/pip install 'atheris>=3'
	touch $@

$(VENV)/.browser: $(STAMP)
	$(BIN)/pip install 'playwright>=1.55'
	touch $@

$(VENV)/.docs: $(STAMP)
	$(BIN)/pip install -e '.[docs]'
	touch $@
