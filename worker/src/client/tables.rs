//! Rows of sparse tables: spread over homes by their ids, pushed and pulled in pieces of a bounded size, many at once. Pushes
//! are contributions to homes, pulls are calls to the tables' own numbers.

use super::buffer::Piece;
use super::call::{CallHandle, CallReply, CallRequest};
use super::home::{Home, Homes};
use super::homes::is_elsewhere;
use super::state::Client;
use super::{Handle, TensorBuffer};
use crate::error::{ClientError, OpError};
use fabric::lock;
use proto_common::ids::{ChunkId, Incarnation};
use proto_common::message;
use proto_common::table::{
    PUSH_HEAD_BYTES, PushHead, PushStep, ROWS_PER_REQUEST_MAX, RowOp, RowStatus, Spread, TableSpec, mix,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes of rows in one request. Several fit a cache: what one side has just written, the other reads from there.
const REQUEST_BYTES: usize = 256 << 10;
/// Requests of one pull that are under way: their buffers are used again for those that follow.
const PULLS_AHEAD: usize = 4;
/// Requests of one push that are under way: beyond them a push waits for its first.
const PUSHES_AHEAD: usize = 16;
const ID_BYTES: usize = size_of::<u64>();

/// Which push the next one to a home is.
type Which<'a> = &'a mut dyn FnMut(usize) -> Option<PushStep>;

/// A declared table. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Table {
    spec: TableSpec,
    homes: Arc<Homes>,
    /// Bytes that one push to a home may have.
    most_bytes: usize,
    /// Whose it is: rows are numbered by that client.
    of: Incarnation,
}

impl Table {
    /// The declaration.
    #[must_use]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Rows of one request.
    fn most_rows(&self) -> usize {
        (REQUEST_BYTES / (ID_BYTES + self.spec.row_bytes())).clamp(1, ROWS_PER_REQUEST_MAX)
    }

    /// Rows that a push aims at: half of what it may have, as shares are not all alike.
    fn usual_pushed(&self) -> usize {
        (self.most_pushed() / 2).clamp(1, self.most_rows())
    }

    /// Rows that one push may have.
    fn most_pushed(&self) -> usize {
        self.most_bytes.saturating_sub(PUSH_HEAD_BYTES) / (ID_BYTES + self.spec.row_bytes())
    }
}

/// A contribution to a home on its way.
#[derive(Debug)]
struct Pushed {
    handle: Handle,
    homes: Arc<Homes>,
    part: usize,
}

impl Pushed {
    /// Waits until it is in force. The buffer that it was in.
    fn wait(self, key: u32) -> Result<Option<TensorBuffer>, ClientError> {
        let Self { handle, homes, part } = self;
        let result = handle.wait();
        homes.parts[part].end();
        match result {
            Ok(ended) => Ok(ended.source),
            Err(ClientError::Op(OpError::BadValue { .. })) => Err(refused(
                key,
                "a server has no memory for more rows, so pushes to new rows were ignored; set rows_max of the table, or raise memory.table_bytes of the server",
            )),
            Err(error) => Err(error),
        }
    }
}

/// A push of rows in flight. Dropping it does not cancel it.
#[derive(Debug)]
pub struct RowsHandle {
    pushes: Vec<Pushed>,
    key: u32,
}

impl RowsHandle {
    /// Waits until the push is complete. The error names the servers that were waited for.
    pub fn wait(self) -> Result<(), ClientError> {
        let key = self.key;
        self.pushes.into_iter().try_for_each(|pushed| pushed.wait(key).map(drop))
    }

    /// Whether it has ended, successfully or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.pushes.iter().all(|pushed| pushed.handle.is_done())
    }

    /// The operations that it consists of.
    pub(super) fn handles(&self) -> impl ExactSizeIterator<Item = &Handle> {
        self.pushes.iter().map(|pushed| &pushed.handle)
    }
}

/// Which rows go where: their places in the caller's list, part by part.
struct Parts {
    places: Vec<u32>,
    ranges: Vec<Range<usize>>,
}

impl Parts {
    /// Each part in `shares`, by id: what has one id stays together.
    fn new(spread: Spread, ids: &[u64], shares: usize) -> Self {
        let count = spread.parts() * shares;
        if count == 1 {
            // Nothing to sort.
            return Self { places: Vec::new(), ranges: std::iter::once(0..ids.len()).collect() };
        }
        let share_of = |id: u64| (((mix(!id) >> 32) * shares as u64) >> 32) as usize;
        let mut ends = vec![0usize; count + 1];
        let parts: Vec<u32> =
            ids.iter().map(|id| (spread.part_of(*id) * shares + share_of(*id)) as u32).collect();
        parts.iter().for_each(|part| ends[*part as usize + 1] += 1);
        for part in 1..ends.len() {
            ends[part] += ends[part - 1];
        }
        let ranges = ends.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let mut places = vec![0u32; ids.len()];
        for (at, part) in parts.iter().enumerate() {
            let next = &mut ends[*part as usize];
            places[*next] = at as u32;
            *next += 1;
        }
        Self { places, ranges }
    }

    /// The place in the caller's list of the one at `at` in the order of parts.
    fn place(&self, at: usize) -> usize {
        self.places.get(at).map_or(at, |place| *place as usize)
    }
}

impl Client {
    /// Declares a table on every server. All workers must declare the same. A repeated declaration has no effect;
    /// another declaration of a known key is refused. Rows are created by pushes. A row and a few additional bytes
    /// must fit into a chunk (`cluster.chunk_bytes`).
    pub fn declare_table(&self, spec: &TableSpec) -> Result<Table, ClientError> {
        spec.validate().map_err(|error| ClientError::Table { key: spec.key, reason: error.to_string() })?;
        let most_bytes = self.0.shape.chunk_bytes as usize;
        let row_bytes = PUSH_HEAD_BYTES + ID_BYTES + spec.row_bytes();
        if row_bytes > most_bytes {
            let reason = format!(
                "a row needs {row_bytes} bytes in a message, but a chunk has only {most_bytes} bytes; raise cluster.chunk_bytes"
            );
            return Err(ClientError::Table { key: spec.key, reason });
        }
        let table = Table { spec: spec.clone(), homes: self.homes()?, most_bytes, of: self.0.incarnation };
        let body = message::encode(spec).map_err(|error| ClientError::Internal(error.to_string()))?;
        let unknown = self.unknown_at(&table, &body)?;
        if unknown.is_empty() {
            return Ok(table);
        }
        let declare = |part: &usize| self.declare_at(&table, *part, &body);
        let declared: Vec<Pushed> = unknown.iter().map(declare).collect::<Result<_, _>>()?;
        // Why one was refused is asked for.
        let result = RowsHandle { pushes: declared, key: spec.key }.wait();
        let left = self.unknown_at(&table, &body)?;
        if left.is_empty() { Ok(table) } else { Err(result.err().unwrap_or_else(|| unknown_table(spec.key))) }
    }

    /// Parts that do not know the table yet. An error where one knows another.
    fn unknown_at(&self, table: &Table, body: &[u8]) -> Result<Vec<usize>, ClientError> {
        let (key, homes) = (table.spec.key, &table.homes);
        let ask = |home: &Home| {
            request(RowOp::Declare, homes.parts.len(), home.id(), Piece::Bytes(body.to_vec()), 1)
        };
        let asked: Vec<_> = homes.parts.iter().map(|home| self.ask_home(key, home, ask(home))).collect();
        let mut unknown = Vec::new();
        for (part, (home, asked)) in homes.parts.iter().zip(asked).enumerate() {
            let result = asked?.wait();
            let reply = if is_elsewhere(&result) {
                self.answer_of_home(key, home, || Ok(ask(home)))?
            } else {
                result?
            };
            match told(key, reply) {
                Ok(Some(_)) => {}
                Ok(None) => unknown.push(part),
                Err(error) => return Err(error),
            }
        }
        Ok(unknown)
    }

    fn declare_at(&self, table: &Table, part: usize, spec: &[u8]) -> Result<Pushed, ClientError> {
        let (key, parts) = (table.spec.key, table.homes.parts.len() as u32);
        let head =
            PushHead { op: RowOp::Declare, key, count: spec.len() as u32, parts, room: 0, which: None };
        let mut body =
            self.allocate((PUSH_HEAD_BYTES + spec.len().next_multiple_of(size_of::<f32>())) as u64)?;
        body.fill(0);
        body[..PUSH_HEAD_BYTES].copy_from_slice(&head.to_bytes());
        body[PUSH_HEAD_BYTES..][..spec.len()].copy_from_slice(spec);
        self.contribute(table, part, body)
    }

    fn contribute(&self, table: &Table, part: usize, body: TensorBuffer) -> Result<Pushed, ClientError> {
        let home = &table.homes.parts[part];
        home.begin();
        match self.push(&home.tensor, body) {
            Ok(handle) => Ok(Pushed { handle, homes: table.homes.clone(), part }),
            Err(error) => {
                home.end();
                Err(error)
            }
        }
    }

    /// Pushes values to rows: `width` values for each id, in the order of the ids. The table's rule is applied at
    /// once, to each row separately. Values of repeated ids are summed first. This worker's later pulls include it.
    ///
    /// It counts once if servers or channels fail. But if this worker fails during the push, restarts and repeats it
    /// ([`Client::resume`]), servers that had received their part apply it again. A push with its step counts once in
    /// that case, too: [`Client::push_rows_in_step`].
    pub fn push_rows(&self, table: &Table, ids: &[u64], values: &[f32]) -> Result<RowsHandle, ClientError> {
        self.push_all(table, (ids, values), &mut |_| None)
    }

    /// As [`Client::push_rows`], in a step of the trainer: any number that only grows, such as the round from
    /// [`Client::resume`] and the following ones. A restarted process continues with some step, and must push the same
    /// rows in the same order from there on as its earlier process did. What servers already have of it counts once. A
    /// process that replaces one that has left must begin after that one's last step; otherwise its pushes are not
    /// applied.
    ///
    /// If the step is before the last one, it returns an error of its own and pushes nothing.
    pub fn push_rows_in_step(
        &self,
        table: &Table,
        step: u64,
        ids: &[u64],
        values: &[f32],
    ) -> Result<RowsHandle, ClientError> {
        let (stepped, rank) = (table.homes.stepped(table.spec.key), self.rank());
        // Held until all are on their way: homes know the last one of a worker only, so they have to come in order.
        let mut stepped = lock(&stepped);
        self.check_rows(table, ids, values.len())?;
        let begun = stepped.begin(step, table.homes.parts.len());
        begun.map_err(|reason| ClientError::Table { key: table.spec.key, reason })?;
        self.push_all(table, (ids, values), &mut |part| Some(stepped.next(rank, part)))
    }

    fn push_all(
        &self,
        table: &Table,
        (ids, values): (&[u64], &[f32]),
        which: Which<'_>,
    ) -> Result<RowsHandle, ClientError> {
        let width = table.spec.width as usize;
        self.check_rows(table, ids, values.len())?;
        let spread = table.homes.spread;
        let shares = ids.len().div_ceil(spread.parts() * table.usual_pushed()).max(1);
        let parts = Parts::new(spread, ids, shares);
        let mut pushes = VecDeque::new();
        for (share, range) in parts.ranges.iter().enumerate() {
            let part = share / shares;
            if range.len() <= table.most_pushed() {
                if !range.is_empty() {
                    let rows = (&parts, ids, values);
                    self.push_request(table, (part, which(part)), rows, range.clone(), &mut pushes)?;
                }
                continue;
            }
            // What has one id is in one request, however often it stands there.
            let (ids, values) = summed(&parts, ids, values, range.clone(), width);
            let all = Parts { places: Vec::new(), ranges: Vec::new() };
            for rows in cut(&(0..ids.len()), table.usual_pushed()) {
                let values = (&all, &ids[..], &values[..]);
                self.push_request(table, (part, which(part)), values, rows, &mut pushes)?;
            }
        }
        Ok(RowsHandle { pushes: pushes.into(), key: table.spec.key })
    }

    fn push_request(
        &self,
        table: &Table,
        (part, which): (usize, Option<PushStep>),
        (parts, ids, values): (&Parts, &[u64], &[f32]),
        rows: Range<usize>,
        pushes: &mut VecDeque<Pushed>,
    ) -> Result<(), ClientError> {
        let (width, row_bytes) = (table.spec.width as usize, table.spec.row_bytes());
        let ids_bytes = rows.len() * ID_BYTES;
        let bytes = PUSH_HEAD_BYTES + ids_bytes + rows.len() * row_bytes;
        let mut body = self.push_buffer(table, bytes, pushes)?;
        let (to_head, rest) = body[..bytes].split_at_mut(PUSH_HEAD_BYTES);
        let (key, count) = (table.spec.key, rows.len() as u32);
        let head = PushHead { op: RowOp::Push, key, count, parts: 0, room: 0, which };
        to_head.copy_from_slice(&head.to_bytes());
        let (to_ids, to_values) = rest.split_at_mut(ids_bytes);
        write_ids(parts, ids, rows.clone(), to_ids);
        match parts.places.is_empty() {
            true => to_values.copy_from_slice(values[rows.start * width..rows.end * width].as_bytes()),
            false => {
                for (at, to) in rows.clone().zip(to_values.chunks_exact_mut(row_bytes)) {
                    to.copy_from_slice(values[parts.place(at) * width..][..width].as_bytes());
                }
            }
        }
        pushes.push_back(self.contribute(table, part, body)?);
        Ok(())
    }

    /// Memory for a request: an earlier one's that has ended, which caches still have.
    fn push_buffer(
        &self,
        table: &Table,
        bytes: usize,
        pushes: &mut VecDeque<Pushed>,
    ) -> Result<TensorBuffer, ClientError> {
        let is_over = |pushed: &Pushed| pushed.handle.is_done();
        if pushes.len() >= PUSHES_AHEAD || pushes.front().is_some_and(is_over) {
            let before = pushes.pop_front().map(|pushed| pushed.wait(table.spec.key)).transpose()?.flatten();
            if let Some(buffer) = before.filter(|buffer| buffer.len() == bytes) {
                return Ok(buffer);
            }
        }
        self.allocate(bytes as u64)
    }

    /// Pulls rows into `out`: `width` values for each id, in the order of the ids. Waits for them.
    pub fn pull_rows(&self, table: &Table, ids: &[u64], out: &mut [f32]) -> Result<(), ClientError> {
        self.check_rows(table, ids, out.len())?;
        let parts = Parts::new(table.homes.spread, ids, 1);
        let homes = parts.ranges.iter().zip(&table.homes.parts);
        self.settle_homes(homes.filter(|(range, _)| !range.is_empty()).map(|(_, home)| home))?;
        let most = table.most_rows();
        let requests = |(part, range)| cut(range, most).map(move |rows| (part, rows));
        let mut asked = VecDeque::with_capacity(PULLS_AHEAD);
        for (part, rows) in parts.ranges.iter().enumerate().flat_map(requests) {
            let free = match asked.len() >= PULLS_AHEAD {
                true => {
                    let first = asked.pop_front();
                    first.map(|first| self.scatter(table, (&parts, ids), first, out)).transpose()?.flatten()
                }
                false => None,
            };
            let request = CallRequest {
                reply_into: free.map(Into::into),
                ..self.pull_request(table, part, (&parts, ids), &rows)?
            };
            asked.push_back((part, rows, self.ask_home(table.spec.key, &table.homes.parts[part], request)?));
        }
        asked.into_iter().try_for_each(|one| self.scatter(table, (&parts, ids), one, out).map(drop))
    }

    fn pull_request(
        &self,
        table: &Table,
        part: usize,
        (parts, ids): (&Parts, &[u64]),
        rows: &Range<usize>,
    ) -> Result<CallRequest, ClientError> {
        let mut body = self.allocate((rows.len() * ID_BYTES) as u64)?;
        write_ids(parts, ids, rows.clone(), &mut body);
        let (bytes, home) = ((rows.len() * table.spec.row_bytes()) as u64, table.homes.parts[part].id());
        Ok(request(RowOp::Pull, rows.len(), home, Piece::Buffer(body), bytes))
    }

    /// Waits for rows and copies them to where they belong. Returns the buffer that they were in.
    fn scatter(
        &self,
        table: &Table,
        (parts, ids): (&Parts, &[u64]),
        (part, rows, asked): (usize, Range<usize>, CallHandle),
        out: &mut [f32],
    ) -> Result<Option<TensorBuffer>, ClientError> {
        let key = table.spec.key;
        let result = asked.wait();
        let again = || self.pull_request(table, part, (parts, ids), &rows);
        let reply = match is_elsewhere(&result) {
            true => self.answer_of_home(key, &table.homes.parts[part], again)?,
            false => result?,
        };
        let reply = told(key, reply)?.ok_or_else(|| unknown_table(key))?;
        if reply.body.len() != rows.len() * table.spec.row_bytes() {
            return Err(refused(key, "the server sent rows of another length"));
        }
        read_rows(parts, rows, &reply.body, table.spec.width as usize, out);
        Ok(reply.body.into_buffer())
    }

    fn check_rows(&self, table: &Table, ids: &[u64], numbers: usize) -> Result<(), ClientError> {
        let (key, width) = (table.spec.key, table.spec.width as usize);
        if table.of != self.0.incarnation {
            return Err(refused(
                key,
                "it belongs to another client; pass one that declare_table of this client returned",
            ));
        }
        if u32::try_from(ids.len()).is_err() {
            return Err(refused(key, "too many rows at once; push or pull them in parts"));
        }
        match ids.len().checked_mul(width) {
            Some(want) if want == numbers => Ok(()),
            _ => {
                let count = ids.len();
                let what =
                    format!("{count} rows of {width} elements do not match an array of {numbers} elements");
                Err(refused(key, &what))
            }
        }
    }
}

fn refused(key: u32, reason: &str) -> ClientError {
    ClientError::Table { key, reason: reason.to_owned() }
}

fn unknown_table(key: u32) -> ClientError {
    refused(key, "it is not declared at a server; call declare_table first")
}

fn request(op: RowOp, count: usize, home: ChunkId, body: Piece, reply_bytes: u64) -> CallRequest {
    let mut head = vec![op as u8, 0, 0, 0];
    // Bounded by what one request may have.
    head.extend((count as u32).to_le_bytes());
    head.extend(home.key.0.to_le_bytes());
    CallRequest { head, body: vec![body], reply_bytes, ..CallRequest::default() }
}

fn cut(range: &Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = range.end;
    range.clone().step_by(most).map(move |start| start..end.min(start + most))
}

/// The rows of a range with each id once: the sums of its values, in the order in which they stand there.
fn summed(
    parts: &Parts,
    ids: &[u64],
    values: &[f32],
    range: Range<usize>,
    width: usize,
) -> (Vec<u64>, Vec<f32>) {
    let mut places: Vec<usize> = range.map(|at| parts.place(at)).collect();
    places.sort_by_key(|place| ids[*place]);
    let (mut once, mut sums) = (Vec::new(), Vec::new());
    for place in places {
        let row = &values[place * width..][..width];
        if once.last() == Some(&ids[place]) {
            let at = sums.len() - width;
            let sum: &mut [f32] = &mut sums[at..];
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        } else {
            once.push(ids[place]);
            sums.extend_from_slice(row);
        }
    }
    (once, sums)
}

fn write_ids(parts: &Parts, ids: &[u64], rows: Range<usize>, to: &mut [u8]) {
    for (at, to) in rows.zip(to.chunks_exact_mut(ID_BYTES)) {
        to.copy_from_slice(&ids[parts.place(at)].to_le_bytes());
    }
}

fn read_rows(parts: &Parts, rows: Range<usize>, from: &[u8], width: usize, out: &mut [f32]) {
    if parts.places.is_empty() {
        out[rows.start * width..rows.end * width].as_mut_bytes().copy_from_slice(from);
        return;
    }
    for (at, row) in rows.zip(from.chunks_exact(width * size_of::<f32>())) {
        out[parts.place(at) * width..][..width].as_mut_bytes().copy_from_slice(row);
    }
}

/// Reads how a request ended; none where the table is not known.
fn told(key: u32, reply: CallReply) -> Result<Option<CallReply>, ClientError> {
    let status = reply.head.first().copied().and_then(RowStatus::from_wire);
    match status {
        Some(RowStatus::Done) => Ok(Some(reply)),
        Some(RowStatus::Undeclared) => Ok(None),
        Some(RowStatus::Conflict) => {
            let why = String::from_utf8_lossy(&reply.body).into_owned();
            Err(refused(key, &format!("refused: {why}; all workers must declare the same")))
        }
        Some(RowStatus::Full) => {
            let why = String::from_utf8_lossy(&reply.body);
            Err(refused(
                key,
                &format!(
                    "a server has no room for it ({why}); try again later, or raise memory.call_bytes for rows that are sent, memory.table_bytes for tables"
                ),
            ))
        }
        Some(RowStatus::Malformed | RowStatus::Elsewhere) | None => {
            Err(refused(key, "the server refused the request; run the same release everywhere"))
        }
    }
}
