"""Train a team briefly, export it as int8, and evaluate the exported file.

    python examples/export_int8.py --episodes 4000

The ONNX file contains the whole team. ONNX Runtime runs it, without torch.
"""

from pathlib import Path

import tyro

from shoal import TrainConfig, load, train


def main(episodes: int = 4_000, evaluated: int = 500, out: str | None = None) -> tuple[float, float, float]:
    """Mean returns per agent: of the trained team in float32, of the exported one in int8, and of a random one.

    Args:
        episodes: training episodes.
        evaluated: episodes of each evaluation.
        out: run folder; None: a new one under runs/.

    """
    result = train(TrainConfig(rules="openai", episodes=episodes, evaluate_episodes=0, out=out))
    policy = load(result.run)
    file = Path(result.run) / "int8.onnx"
    exported = policy.export(file, precision="int8")
    print(f"{file}: {exported.bytes:,} bytes, {exported.agreement:.1%} of the actions as in float32")

    small = load(file)
    env = small.make_env(copies=1, seed=0)  # one episode step by step; evaluate() below plays many
    observation = env.reset()
    for _ in range(env.spec.episode_length):
        observation = env.step(small.act(observation)).observation

    returns = policy.evaluate(evaluated).mean, small.evaluate(evaluated).mean, policy.evaluate_random(evaluated).mean
    print("return per agent: float32 {:.1f}, int8 {:.1f}, random {:.1f}".format(*returns))
    return returns


if __name__ == "__main__":
    tyro.cli(main)
