"""The claim of the paper at CPU size: methods from the same cold start, tasks, simulator and budget, credit alone differs.

    python -m slca.main --config=configs/science.py:sft --workdir=runs/science/sft-0 --config.run.seed=0
    python -m slca.main --config=configs/science.py:grpo --config.run.seed=0 --config.checkpoint.init=runs/science/sft-0
    python -m slca.main --config=configs/science.py:slca,noise=3,rho=0.5 ...

`python -m bench.science run` makes all of them and `python -m bench.science report` the tables of bench/RESULTS.md.
The argument is an algorithm and conditions: noise=R (noise on the training summary reward, standard deviation R times the tool
reward's inside groups), rho=C (its correlation with the tool reward), sparse (a binary execution reward in place of HierR),
no_hierr (no execution reward), steps=N. Hardware: 2 CPU cores, 2 GiB a run; 2 to 4 minutes a run.
"""

from configs import tiny

CONDITIONS = "noise=R, rho=C, sparse, no_hierr, steps=N"


def get_config(arg: str = "slca"):
    name, *conditions = arg.split(",")
    c = tiny.get_config("slca" if name == "sft" else name)
    if name == "sft":
        c.train.steps = 0
    else:
        c.sft.steps, c.train.steps = 0, 100
        c.checkpoint.every, c.checkpoint.keep = 50, 1
    c.eval.tasks = 128
    c.report.gradient_every, c.report.episodes_every = 10, 50
    for condition in conditions:
        key = condition.partition("=")[0]
        if key == "noise":
            c.reward.summary_noise = _number(float, condition)
        elif key == "rho":
            c.reward.summary_noise_rho = _number(float, condition)
        elif key == "steps":
            c.train.steps = _number(int, condition)
        elif key == "sparse":
            c.reward.execution = "solved"
        elif key == "no_hierr":
            c.reward.execution = "none"  # as process weights of 0, and the process is measured all the same
        else:
            raise ValueError(f"configs/science.py: unknown condition {condition!r}; known: {CONDITIONS}")
    return c


def _number(kind, condition):
    """The number behind `=`. Raises ValueError that names the condition."""
    try:
        return kind(condition.partition("=")[2])
    except ValueError:
        raise ValueError(f"configs/science.py: {condition!r}: a number is needed; known: {CONDITIONS}") from None
