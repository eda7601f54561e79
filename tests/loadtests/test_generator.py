from loadtests.generator import Generator
from loadtests.load import Load
from loadtests.process import Server


def test_the_generator_serves_loads_from_a_process_of_its_own(upstream: Server) -> None:
    generator = Generator()
    try:
        for first in (0, 11):
            tally = generator.run(Load(port=upstream.port, workload="read", calls=10, first=first))
            assert (tally.problem, tally.calls) == ("", 10)
    finally:
        generator.stop()
