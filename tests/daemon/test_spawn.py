"""Component processes as the daemon starts them: what is left open when one has ended."""

import asyncio

import uvloop

from dynamod.daemon.spawn import Child, Origin


def test_the_pipes_of_a_process_that_has_ended_are_closed() -> None:
    """Left to the garbage collector, their descriptors would be closed when others have those numbers already."""

    async def main() -> list[bool]:
        child = Child(Origin().environment(), "", Origin())
        out, err = await child.outputs()
        child.sock.close()  # its lifeline: it ends before it gets a plan
        assert [await out.read(), await err.read(), await child.wait()] == [b"", b"", 0]
        await asyncio.sleep(0)
        return [pipe.closed for pipe in (child.popen.stdout, child.popen.stderr) if pipe is not None]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [True, True]
