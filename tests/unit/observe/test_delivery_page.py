"""What is shown of deliveries: medians, what was not counted, and why a mode did not run."""

from engine.observe.delivery import Delivery, Part, page, table


def delivery(mode: str, seconds: float, network: int | None) -> Delivery:
    first = Part(seconds=seconds, network_bytes=network, disk_bytes=3_000_000)
    second = Part(seconds=seconds / 2, network_bytes=network, disk_bytes=1_000_000)
    return Delivery(mode=mode, first=first, second=second, read_mb_s=100.0)


FOUND = {
    "local": [delivery("local", seconds, 0) for seconds in (0.1, 0.3, 0.2)],
    "gzip": [delivery("gzip", 8.0, None)],
}


def test_one_row_a_mode() -> None:
    heads, rows = table(FOUND, {"nydus": "no snapshotter"})
    assert {len(row) for row in rows} == {len(heads)}
    assert rows[0] == ["local", "0.20", "0.0", "3.0", "100", "0.10", "0.0", "1.0"]
    assert rows[1][:3] == ["gzip", "8.00", "–"]
    assert rows[2][:2] == ["nydus", "not here"]


def test_the_page_has_a_figure_for_each_quantity_and_every_measurement() -> None:
    text = page("Delivery of <base>", FOUND, {"nydus": "no snapshotter"})
    assert "Delivery of &lt;base&gt;" in text and "2 modes were measured here. Not here: nydus: no snapshotter." in text
    for title in ("Start-up latency", "Network traffic", "Disk traffic", "Read throughput"):
        assert text.count(f"<h2>{title}</h2>") == 1
    assert '"x_names":["local","gzip"]' in text and "gzip: not counted" in text
    assert text.count("<tr><th>3</th><td>0.20</td>") == 1
