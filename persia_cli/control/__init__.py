"""Pure state machines of the job: events in, instructions out; no socket, thread or clock.

`phases` begins with its own invariants.

Steps (`watermarks`):

- All steps up to a watermark are finished; those above it are known one by one, and none is more than `limit` above
  it. A watermark never falls, and a step is marked once.
- A rank starts steps in their order, with at most `bound` unfinished. A phase never ends before a finished step.
- In sync mode the updates of a step leave the gate together, once, those of all ranks, and after the step before.

Data (`position`):

- The rows of a step do not depend on the number of ranks, whose parts are in order, without gap or overlap.
- A pass has each row of its split once.

Replicas (`membership`, `restarts`):

- A name of the job belongs to one process. Another one gets it only after the death of the first is recorded, as the
  next incarnation.
- A request of an earlier incarnation, or of a process that has died, is refused.
- A dead replica is not ready, not silent and not at work.
- Time in which the coordinator is suspended does not count as silence, but for LONGEST_GAP_S.
- A process is not replaced if the next one would end like it, nor a server whose memory may be damaged, nor any
  replica more than `max_restarts` times in a window.

Decisions (`evaluation_tracker`):

- An undefined metric is never the best.
- A restored tracker decides as the one before it would have.
"""
