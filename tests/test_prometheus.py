"""A real Prometheus scrapes a real agent with the configuration that we ship, and answers its users' queries."""

import subprocess
from pathlib import Path

from needs import needs_program
from prometheus_server import running_prometheus
from running import running_agent

SHIPPED = Path(__file__).resolve().parents[1] / "deploy" / "prometheus.yml"

QUERIES = [
    "cpu_load_1m",
    "node_health_score",
    "node_cpu_utilization_ratio",
    "node_cpu_pressure_avg10",
    "node_memory_pressure_avg10",
    "node_memory_available_bytes / node_memory_total_bytes",
    "sort_desc(node_health_score)",
    "avg by (node) (node_memory_available_bytes / node_memory_total_bytes)",
    "sum by (node) (rate(cpu_process_cpu_seconds_total[1m]))",
    "topk(5, cpu_process_rss_bytes)",
    "topk(5, cpu_process_cpu_seconds_total)",
    "topk(5, 100 * cpu_process_rss_bytes / scalar(node_memory_total_bytes))",
    "topk(5, rate(cpu_process_cpu_seconds_total[1m]))",
]


def test_the_shipped_scrape_configuration_is_valid() -> None:
    needs_program("promtool")
    done = subprocess.run(["promtool", "check", "config", str(SHIPPED)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_query_of_the_node_agents_users_has_data(tmp_path: Path) -> None:
    # Simulated, so that a kernel without pressure information answers too; the real host is tested elsewhere.
    with running_agent("--simulate", "lab") as agent:
        shipped = SHIPPED.read_text()
        config = tmp_path / "prometheus.yml"
        address = agent.url.removeprefix("http://")
        config.write_text(shipped.replace("127.0.0.1:9460", address).replace("15s", "1s"))
        assert config.read_text() != shipped
        with running_prometheus(config, tmp_path / "data") as prometheus:
            prometheus.wait_for("rate(cpu_process_cpu_seconds_total[1m])")
            empty = [query for query in QUERIES if not prometheus.query(query)]
            assert empty == []
            by_node = prometheus.query("sum by (node) (rate(cpu_process_cpu_seconds_total[1m]))")
            assert [row["metric"] for row in by_node] == [{"node": "127.0.0.1"}]
            assert prometheus.query("up == 1")
