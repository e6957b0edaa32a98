"""Bytes between processes: messages, frames, sockets, requests with deadlines; no torch, no numba.

Requests and their answers (`client`, `server`):

- A request has one number and takes one answer. It is sent again with this number until an answer has come.
- A server passes a request to its handler again only if the answer had arrays or is forgotten. So handlers recognise
  a repeat by its content.
- Nothing depends on the order of messages: each may come late, twice or never.
- No request waits for ever: it is answered, refused, or its peer is silent for too long. Only time in which this
  process listens counts, and none while the peer's process is replaced.
- A new process has another identity and a new client other numbers, so neither gets an answer to earlier requests.

Bounds (`message`, `frames`, `sockets`):

- A message above the limits of its kind is neither sent nor decoded.
- Any bytes are a valid message or raise MalformedMessage, nothing else.
- No send waits, and each queue is bounded: a message that finds it full is dropped, and requests are sent again.
- The arrays of a message are not written once it is sent, neither by the sender nor by the receiver.

Access (`sockets`, `secret`):

- A server reads no message of another process before the log-in with the job's secret.
- Without keys no other machine reaches a server, unless the user trusts the network.

Loans (`shared_memory`):

- A cell is 0, the serial number of a message in flight, or TAKEN. So a message is received at most once.
- Lent memory is used again only when its cell is 0 and no array on it is left in the lender.
- A cell becomes 0 when the receiver has released all arrays, when the message was not sent or is lost, or when the
  borrower is dead. A process ends no loan but those that it gave or took.
- A segment never shrinks, and has no name that outlives its process.
"""
