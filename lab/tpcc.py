"""Makes TPC-C's tables on PostgreSQL, and runs its mix of new orders, payments and deliveries, by psql and pgbench
alone.

The SQL lies with the benchmarks, which use the same (crates/bench/src/tools/tpcc). Results are not comparable with
published ones of TPC-C.
"""

from __future__ import annotations

from . import proc
from .paths import ROOT
from .postgres import Postgres

SQL = ROOT / "crates" / "bench" / "src" / "tools" / "tpcc"
MIX = {"new_order": 45, "payment": 43, "delivery": 4}
"""Weights of the transactions; those of TPC-C that only read are left out."""
CLIENTS = 2


def prepare(server: Postgres, database: str, warehouses: int, *, random_strings: bool) -> None:
    """Makes and fills the tables. With `random_strings`, strings are as the specification wants them, and otherwise as
    sysbench-tpcc makes them."""
    settings = f"\\set warehouses {warehouses}\n\\set random_strings {int(random_strings)}\n"
    server.sql(settings + (SQL / "load.sql").read_text(), database=database, timeout_s=1800)


def age(server: Postgres, database: str, warehouses: int, transactions: int) -> None:
    """Runs `transactions` transactions of the mix."""
    scripts = [word for name, weight in MIX.items() for word in ("-f", f"{SQL / name}.sql@{weight}")]
    options = ["-n", "-M", "prepared", "-D", f"warehouses={warehouses}", *scripts, "--max-tries=10"]
    options += ["-c", str(CLIENTS), "-j", "2", "-t", str(max(1, transactions // CLIENTS))]
    proc.run(server.client("pgbench", *options, database=database), timeout_s=1800)
