"""Write bank.csv and shop.csv: 1,500 people of whom a bank and a shop know different things, and not quite the same
ones.

Whether somebody does not pay back depends on what the bank knows (income, debt) and on what the shop knows (returns,
late payments). Everything is made up, with a fixed seed.
"""

import csv
import sys
from pathlib import Path

import numpy as np

PEOPLE, SEED = 1500, 7


def write(path, columns):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def main(folder):
    draw = np.random.default_rng(SEED)
    income, debt, returns, late = draw.normal(size=(4, PEOPLE))
    risk = -0.9 * income + 0.8 * debt + 0.8 * returns + 1.2 * late + draw.logistic(size=PEOPLE)
    names = np.array([f"customer-{number:05d}" for number in draw.permutation(PEOPLE * 10)[:PEOPLE]])
    of_bank, of_shop = draw.permutation(PEOPLE)[:1350], draw.permutation(PEOPLE)[:1350]
    bank = {
        "customer": names[of_bank],
        "income": (40_000 + 12_000 * income[of_bank]).round(-2).astype(int),
        "debt": (8_000 + 4_000 * debt[of_bank]).clip(0).round(-2).astype(int),
        "default": np.where(risk[of_bank] > 0.5, "yes", "no"),
    }
    shop = {
        "customer": names[of_shop],
        "returned": (12 + 5 * returns[of_shop]).clip(0).round().astype(int),
        "late_payments": (3 + 2 * late[of_shop]).clip(0).round(1),
        "member": np.where(draw.random(len(of_shop)) < 0.4, "yes", "no"),
    }
    write(folder / "bank.csv", bank)
    write(folder / "shop.csv", shop)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
