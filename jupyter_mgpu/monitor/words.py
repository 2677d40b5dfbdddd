"""Samples in lines that a person reads; unknown values read n/a."""

from jupyter_mgpu.monitor.records import EngineSample, GpuSample, HostSample

BYTES_PER_GIB = 2**30
UNKNOWN = "n/a"


def gpu_line(gpu: GpuSample) -> str:
    """Say everything about one GPU."""
    parts = [
        f"busy {_number(gpu.utilization_percent, '%')}",
        f"memory {_gib(gpu.memory_used_bytes)} of {_gib(gpu.memory_total_bytes)} GiB",
        f"{_number(gpu.power_watts, 'W')} of {_number(gpu.power_limit_watts, 'W')}",
        _number(gpu.temperature_celsius, "C"),
    ]
    if gpu.state == "unusable":
        parts = [f"cannot be used: {next(iter(gpu.reasons.values()), UNKNOWN)}"]
    if gpu.throttle:
        parts.append(f"slowed down: {', '.join(gpu.throttle)}")
    if gpu.users:
        parts.append("; ".join(use.words for use in gpu.users))
    name = f"{gpu.label} ({gpu.name or UNKNOWN}){_on(gpu.host)}"
    return f"{name}: {_state(gpu.state, gpu.age_s)}{', '.join(parts)}"


def host_line(host: HostSample) -> str:
    """Say everything about a host."""
    memory = f"{_gib(host.memory_used_bytes)} of {_gib(host.memory_total_bytes)} GiB"
    state = _state(host.state, host.age_s)
    line = f"{host.name or 'host'}: {state}CPU {_number(host.cpu_percent, '%')}, memory {memory}"
    return line if host.trouble is None else f"{line}. {host.trouble}"


def engine_line(engine: EngineSample) -> str:
    """Say everything about an engine's process."""
    name = f"pool '{engine.pool}' rank {engine.rank} (pid {engine.pid}){_on(engine.host)}"
    if engine.rss_bytes is None:
        return f"{name}: {engine.reasons.get('rss_bytes', UNKNOWN)}"
    cpu = f"CPU {_number(engine.cpu_percent, '%')} of a core"
    return f"{name}: {cpu}, memory {_gib(engine.rss_bytes)} GiB"


def _on(host: str | None) -> str:
    return "" if host is None else f" on {host}"


def _state(state: str, age_s: float | None) -> str:
    age = "" if age_s is None else f" {age_s:.0f} s"
    words = {"stale": f"stale{age}, ", "lost": f"lost{age and f'{age} ago'}, "}
    return words.get(state, "divided, " if state == "divided" else "")


def _number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f} {unit}"


def _gib(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / BYTES_PER_GIB:.1f}"
