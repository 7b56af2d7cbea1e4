"""Where what is in the numbers that go to the device and between the kernels.

A batch is one int32 buffer; floats are in it as their bits. First the session of every row of logits (-1: no row), then
from `sessions_at` on `SESSION_FIELDS` numbers per session. Places in the buffer are absolute:

- `TOKENS`: the drafted ids. `ROW_BEGINS`: per drafted token where its row's entries begin, and where the last ends; an
  entry is (id, weight). A one-hot row is written out: one entry of weight 2^24.
- `ADJUSTED`: ascending ids that bias or penalties may move, then as many biases, then as many counts (floats), then the
  ids again, with `MOVED_ROW` times the offset of the first row in which each is moved: what was drafted is in the rows
  after it.
  `ADJUSTED_UNITS`: of every `UNIT` ids of the vocabulary, how many of the adjusted lie before them.
"""

import triton.language as tl

SESSION_FIELDS = tl.constexpr(24)
ROW_START = tl.constexpr(0)
LENGTH = tl.constexpr(1)
KEY_LOW = tl.constexpr(2)
KEY_HIGH = tl.constexpr(3)
BLOCK_START = tl.constexpr(4)
RULE = tl.constexpr(5)
TEMPERATURE = tl.constexpr(6)
TOP_K = tl.constexpr(7)
TOP_P = tl.constexpr(8)
LOG_MIN_P = tl.constexpr(9)
REPETITION = tl.constexpr(10)
PRESENCE = tl.constexpr(11)
FREQUENCY = tl.constexpr(12)
TOKENS = tl.constexpr(13)
ROW_BEGINS = tl.constexpr(14)
ADJUSTED = tl.constexpr(15)
NUM_ADJUSTED = tl.constexpr(16)
ADJUSTED_UNITS = tl.constexpr(17)
TRUNCATED = tl.constexpr(18)
PENALISED = tl.constexpr(19)
DRAFT_OFFSET = tl.constexpr(20)
MAX_ROW = tl.constexpr(21)
ROW_MASS = tl.constexpr(22)
"""The last three of drafts only."""

UNIT = tl.constexpr(1024)
MOVED_ROW = tl.constexpr(2**20)

RULE_IDLE = tl.constexpr(-1)
RULE_TOKEN = tl.constexpr(0)
RULE_BLOCK = tl.constexpr(1)
RULE_COUPLED = tl.constexpr(2)
RULE_GREEDY = tl.constexpr(3)

PARTIAL_FIELDS = tl.constexpr(4)
"""Per row and chunk, floats: what pass one leaves."""
CHUNK_PEAK = tl.constexpr(0)
CHUNK_TOTAL = tl.constexpr(1)
"""Sum of exp relative to the peak."""
CHUNK_ARG_MAX = tl.constexpr(2)
"""Greedy sessions: its column (as bits)."""

STATE_FIELDS = tl.constexpr(8)
"""Per row: what turns a score into ln T. PEAK: the maximum; LOG_SUM: ln of the sum of what is kept; kept are scores
above EDGE, those on it up to the column TIE (bits), and of these the ones whose cooled score is at least FLOOR."""
PEAK = tl.constexpr(0)
LOG_SUM = tl.constexpr(1)
EDGE = tl.constexpr(2)
TIE = tl.constexpr(3)
FLOOR = tl.constexpr(4)
FINITE = tl.constexpr(5)

OUT_FIELDS = tl.constexpr(5)
"""Per session: accepted, finite, the row of logits that the next token is drawn from (-1: not by launch three, or under
COUPLED from all), and where in the buffer the entries of the draft's row there begin and end (equal: there is none)."""
ACCEPTED = tl.constexpr(0)
ALL_FINITE = tl.constexpr(1)
DRAW_ROW = tl.constexpr(2)
ENTRIES_BEGIN = tl.constexpr(3)
ENTRIES_END = tl.constexpr(4)

DRAFT_FIELDS = tl.constexpr(4)
"""Per drafted token: whether its logits were finite, entries of its row, the token, its weight; then the row's ids and
then its weights, each in as much room as the batch has for a row."""
DRAFT_FINITE = tl.constexpr(0)
DRAFT_SIZE = tl.constexpr(1)
DRAFT_TOKEN = tl.constexpr(2)
DRAFT_WEIGHT = tl.constexpr(3)
