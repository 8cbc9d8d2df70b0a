from octavo.registry.breaker import CircuitBreaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def breaker_and_clock() -> tuple[CircuitBreaker, Clock]:
    clock = Clock()
    return CircuitBreaker(max_failures=5, open_s=2, clock=clock), clock


def test_five_failures_in_a_row_open_it_for_two_seconds() -> None:
    breaker, clock = breaker_and_clock()
    for _ in range(4):
        assert breaker.allows_call()
        breaker.failed()
    assert breaker.allows_call()
    breaker.failed()
    clock.now = 1.99
    assert breaker.is_open and not breaker.allows_call()
    clock.now = 2.0
    assert breaker.allows_call()


def test_a_success_forgets_earlier_failures() -> None:
    breaker, _ = breaker_and_clock()
    for _ in range(4):
        breaker.failed()
    breaker.succeeded()
    for _ in range(4):
        breaker.failed()
    assert breaker.allows_call()


def test_one_probe_at_a_time_decides_whether_it_closes() -> None:
    breaker, clock = breaker_and_clock()
    for _ in range(5):
        breaker.failed()
    clock.now = 2.0
    assert breaker.allows_call() and not breaker.allows_call()
    breaker.failed()
    assert not breaker.allows_call()
    clock.now = 4.0
    assert breaker.allows_call()
    breaker.succeeded()
    assert breaker.allows_call() and breaker.allows_call() and not breaker.is_open
