"""How much padding a ladder costs on lengths that a large language model's service saw.

The lengths are the four histograms of the Azure LLM inference trace 2023: prompt (context) and
answer (generated) tokens of a coding and of a conversation service. They are not kept here: pass
the directory with `--data`. It holds `azure_llm_2023_code_lengths.csv` and
`azure_llm_2023_conv_lengths.csv`, each with the columns kind, tokens, count.

Source:
    Azure LLM inference trace 2023, github.com/Azure/AzurePublicDataset, CC-BY 4.0; P. Patel et al.,
    "Splitwise: Efficient generative LLM inference using phase splitting", ISCA 2024.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import shapeexec as sx
from benchmarks._common import Report, Table, run_benchmark

SERVICES = ("code", "conv")
GRAPHS = 16


def histograms(directory: Path) -> dict[str, dict[int, int]]:
    """How often each length occurs, by service and kind; length 0 needs no bucket."""
    found: dict[str, dict[int, int]] = {}
    for service in SERVICES:
        with (directory / f"azure_llm_2023_{service}_lengths.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                if int(row["tokens"]):
                    counts = found.setdefault(f"{service}, {row['kind']}", {})
                    counts[int(row["tokens"])] = int(row["count"])
    return found


def run(options: argparse.Namespace) -> Report:
    """Measure the padding of each strategy on each histogram."""
    figures, rows = {}, []
    for name, counts in histograms(options.data).items():
        strategies = {
            f"Ladder.fit, {GRAPHS}": sx.Ladder.fit(counts, GRAPHS),
            "Pow2()": sx.Pow2(),
            "Linear(128)": sx.Linear(128),
        }
        figures[name] = {key: _measure(strategy, counts) for key, strategy in strategies.items()}
        for key, one in figures[name].items():
            cells = (
                f"{one['graphs']}",
                f"{one['padding_per_valid']:.2%}",
                f"{one['padding_per_padded']:.2%}",
            )
            rows.append((name, key, *cells))
    columns = ("lengths", "strategy", "graphs", "padding / valid", "padding / padded")
    title = "Azure LLM inference trace 2023 (Patel et al., ISCA 2024; CC-BY 4.0)"
    return Report([Table(title, columns, rows)], figures)


def _measure(strategy: sx.Strategy, counts: Mapping[int, int]) -> dict[str, float | int]:
    share = strategy.expected_waste(counts)
    return {
        "graphs": len({strategy.bucket(size) for size in counts}),
        "padding_per_valid": share / (1 - share),
        "padding_per_padded": share,
        "requests": sum(counts.values()),
        "valid_tokens": sum(size * count for size, count in counts.items()),
    }


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run as a program."""
    return run_benchmark("ladders", __doc__, run=run, arguments=arguments, add_options=add_data)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add `--data`."""
    parser.add_argument("--data", type=Path, required=True, metavar="DIRECTORY")


if __name__ == "__main__":
    main()
