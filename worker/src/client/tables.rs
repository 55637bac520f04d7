//! Rows of sparse tables: spread over servers and lanes by their ids, pushed and pulled in requests of a bounded size, many
//! at once. Requests are calls to the tables' own numbers.

use super::call::{CallHandle, CallReply, CallRequest, Piece};
use super::{Client, TensorBuffer};
use crate::error::ClientError;
use proto_common::ids::Incarnation;
use proto_common::message;
use proto_common::table::{
    ROW_BYTES_PER_REQUEST_MAX, ROWS_PER_REQUEST_MAX, RowOp, RowStatus, Spread, TableSpec, mix, table_app,
};
use std::collections::VecDeque;
use std::ops::Range;
use zerocopy::IntoBytes;

/// Bytes of rows in one request. Several fit a cache: what one side has just written, the other reads from there.
const REQUEST_BYTES: usize = 256 << 10;
/// Requests of one pull that are under way: their buffers are used again for those that follow.
const PULLS_AHEAD: usize = 4;
/// Requests of one push that are under way: beyond them a push waits for its first.
const PUSHES_AHEAD: usize = 16;
const ID_BYTES: usize = size_of::<u64>();

/// A declared table. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Table {
    spec: TableSpec,
    spread: Spread,
    /// Whose it is: rows are numbered by that client.
    of: Incarnation,
}

impl Table {
    /// What was declared.
    #[must_use]
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    /// Rows of one request.
    fn most_rows(&self) -> usize {
        (REQUEST_BYTES / (ID_BYTES + self.spec.row_bytes())).clamp(1, ROWS_PER_REQUEST_MAX)
    }

    /// Rows that a server takes in one push.
    fn most_pushed(&self) -> usize {
        (ROW_BYTES_PER_REQUEST_MAX / self.spec.row_bytes()).clamp(1, ROWS_PER_REQUEST_MAX)
    }
}

/// A push of rows in flight. Dropping it does not cancel it.
#[derive(Debug)]
pub struct RowsHandle {
    calls: Vec<CallHandle>,
    key: u32,
}

impl RowsHandle {
    /// Waits until all rows have been pushed to; the error names who was waited for.
    pub fn wait(self) -> Result<(), ClientError> {
        let key = self.key;
        self.calls.into_iter().try_for_each(|call| ended(key, call).map(drop))
    }

    /// Has it ended, well or not?
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.calls.iter().all(CallHandle::is_done)
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
    /// Declares a table at every server; every worker declares the same. Repeating it is harmless; another declaration of a
    /// known key is refused. Rows are made by pulls and pushes.
    pub fn declare_table(&self, spec: &TableSpec) -> Result<Table, ClientError> {
        spec.validate().map_err(|error| ClientError::Table { key: spec.key, reason: error.to_string() })?;
        let spread = Spread { servers: self.servers(), lanes: self.0.shape.lanes };
        let table = Table { spec: spec.clone(), spread, of: self.0.incarnation };
        let body = message::encode(spec).map_err(|error| ClientError::Internal(error.to_string()))?;
        let declare = |part| {
            let request = request(RowOp::Declare, spread.parts(), Piece::Bytes(body.clone()), 1);
            self.call_table(&table, part, request)
        };
        let calls: Vec<CallHandle> = (0..spread.parts()).map(declare).collect::<Result<_, _>>()?;
        RowsHandle { calls, key: spec.key }.wait()?;
        Ok(table)
    }

    /// Pushes values to rows: `width` of them for each id, in the order of the ids. The table's rule is applied at once, to
    /// each row by itself; values of an id that stands there several times are summed first. This worker's later pulls see
    /// it.
    pub fn push_rows(&self, table: &Table, ids: &[u64], values: &[f32]) -> Result<RowsHandle, ClientError> {
        let width = table.spec.width as usize;
        self.check_rows(table, ids, values.len())?;
        let shares = ids.len().div_ceil(table.spread.parts() * table.most_rows()).max(1);
        let parts = Parts::new(table.spread, ids, shares);
        let mut calls = VecDeque::new();
        for (share, range) in parts.ranges.iter().enumerate() {
            let part = share / shares;
            if range.len() <= table.most_pushed() {
                if !range.is_empty() {
                    self.push_request(table, part, (&parts, ids, values), range.clone(), &mut calls)?;
                }
                continue;
            }
            // What has one id is in one request, however often it stands there.
            let (ids, values) = summed(&parts, ids, values, range.clone(), width);
            let all = Parts { places: Vec::new(), ranges: Vec::new() };
            for rows in cut(&(0..ids.len()), table.most_rows()) {
                self.push_request(table, part, (&all, &ids, &values), rows, &mut calls)?;
            }
        }
        Ok(RowsHandle { calls: calls.into(), key: table.spec.key })
    }

    fn push_request(
        &self,
        table: &Table,
        part: usize,
        (parts, ids, values): (&Parts, &[u64], &[f32]),
        rows: Range<usize>,
        calls: &mut VecDeque<CallHandle>,
    ) -> Result<(), ClientError> {
        let (width, row_bytes) = (table.spec.width as usize, table.spec.row_bytes());
        let ids_bytes = rows.len() * ID_BYTES;
        let bytes = ids_bytes + rows.len() * row_bytes;
        let mut body = self.push_buffer(table, bytes, calls)?;
        let (to_ids, to_values) = body[..bytes].split_at_mut(ids_bytes);
        write_ids(parts, ids, rows.clone(), to_ids);
        match parts.places.is_empty() {
            true => to_values.copy_from_slice(values[rows.start * width..rows.end * width].as_bytes()),
            false => {
                for (at, to) in rows.clone().zip(to_values.chunks_exact_mut(row_bytes)) {
                    to.copy_from_slice(values[parts.place(at) * width..][..width].as_bytes());
                }
            }
        }
        let request = request(RowOp::Push, rows.len(), Piece::Buffer(body), 1);
        calls.push_back(self.call_table(table, part, request)?);
        Ok(())
    }

    /// Memory for a request: an earlier one's that has ended, which caches still have.
    fn push_buffer(
        &self,
        table: &Table,
        bytes: usize,
        calls: &mut VecDeque<CallHandle>,
    ) -> Result<TensorBuffer, ClientError> {
        let is_over = |call: &CallHandle| call.is_done();
        if calls.len() >= PUSHES_AHEAD || calls.front().is_some_and(is_over) {
            let reply = calls.pop_front().map(|call| ended(table.spec.key, call)).transpose()?;
            let body = reply.and_then(|reply| reply.request.into_iter().next());
            if let Some(Piece::Buffer(buffer)) = body
                && buffer.len() == bytes
            {
                return Ok(buffer);
            }
        }
        self.allocate(bytes as u64)
    }

    /// Pulls rows into `out`: `width` numbers for each id, in the order of the ids. Waits for them.
    pub fn pull_rows(&self, table: &Table, ids: &[u64], out: &mut [f32]) -> Result<(), ClientError> {
        self.check_rows(table, ids, out.len())?;
        let parts = Parts::new(table.spread, ids, 1);
        let most = table.most_rows();
        let requests = |(part, range)| cut(range, most).map(move |rows| (part, rows));
        let mut calls = VecDeque::with_capacity(PULLS_AHEAD);
        for (part, rows) in parts.ranges.iter().enumerate().flat_map(requests) {
            let free = match calls.len() >= PULLS_AHEAD {
                true => {
                    calls.pop_front().map(|call| scatter(table, &parts, call, out)).transpose()?.flatten()
                }
                false => None,
            };
            let mut body = self.allocate((rows.len() * ID_BYTES) as u64)?;
            write_ids(&parts, ids, rows.clone(), &mut body);
            let bytes = (rows.len() * table.spec.row_bytes()) as u64;
            let mut request = request(RowOp::Pull, rows.len(), Piece::Buffer(body), bytes);
            request.reply_into = free;
            calls.push_back((rows, self.call_table(table, part, request)?));
        }
        calls.into_iter().try_for_each(|call| scatter(table, &parts, call, out).map(drop))
    }

    fn check_rows(&self, table: &Table, ids: &[u64], numbers: usize) -> Result<(), ClientError> {
        let (key, width) = (table.spec.key, table.spec.width as usize);
        if table.of != self.0.incarnation {
            return Err(refused(
                key,
                "it is another client's; pass one that this client's own declare_table returned",
            ));
        }
        if u32::try_from(ids.len()).is_err() {
            return Err(refused(key, "too many rows at once; push or pull them in parts"));
        }
        match ids.len().checked_mul(width) {
            Some(want) if want == numbers => Ok(()),
            _ => {
                let count = ids.len();
                Err(refused(key, &format!("{count} rows of {width} are not {numbers} numbers; pass as many")))
            }
        }
    }

    fn call_table(
        &self,
        table: &Table,
        part: usize,
        request: CallRequest,
    ) -> Result<CallHandle, ClientError> {
        let (server, lane) = table.spread.place(part);
        self.call_any(table_app(table.spec.key, lane), server.0, request)
    }
}

fn refused(key: u32, reason: &str) -> ClientError {
    ClientError::Table { key, reason: reason.to_owned() }
}

fn request(op: RowOp, count: usize, body: Piece, reply_bytes: u64) -> CallRequest {
    let mut head = vec![op as u8, 0, 0, 0];
    // Bounded by what one request may have.
    head.extend((count as u32).to_le_bytes());
    CallRequest { head, body: vec![body], reply_bytes: reply_bytes.max(1), ..CallRequest::default() }
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

/// Waits for rows and copies them to where they belong. Returns the buffer that they were in.
fn scatter(
    table: &Table,
    parts: &Parts,
    (rows, call): (Range<usize>, CallHandle),
    out: &mut [f32],
) -> Result<Option<TensorBuffer>, ClientError> {
    let reply = ended(table.spec.key, call)?;
    if reply.body.len() != rows.len() * table.spec.row_bytes() {
        return Err(refused(table.spec.key, "the server sent rows of another length"));
    }
    read_rows(parts, rows, &reply.body, table.spec.width as usize, out);
    Ok(reply.body.into_buffer())
}

/// Waits for a request, and reads how it ended.
fn ended(key: u32, call: CallHandle) -> Result<CallReply, ClientError> {
    let reply = call.wait()?;
    let status = reply.head.first().copied().and_then(RowStatus::from_wire);
    match status {
        Some(RowStatus::Done) => Ok(reply),
        Some(RowStatus::Undeclared) => {
            Err(refused(key, "a server does not know it; call declare_table first"))
        }
        Some(RowStatus::Conflict) => {
            let why = String::from_utf8_lossy(&reply.body).into_owned();
            Err(refused(key, &format!("refused: {why}; all workers must declare the same")))
        }
        Some(RowStatus::Full) if !reply.body.is_empty() => {
            let why = String::from_utf8_lossy(&reply.body);
            Err(refused(
                key,
                &format!(
                    "a server has no room for it ({why}); try again later, or raise memory.call_bytes for rows that are sent, memory.table_bytes for tables"
                ),
            ))
        }
        Some(RowStatus::Full) => Err(refused(
            key,
            "a server has no memory for more rows, so pushes to new ones were left out; give its tables a rows_max, or raise the server's memory.table_bytes",
        )),
        Some(RowStatus::Malformed) | None => {
            Err(refused(key, "the server refused the request; run the same release everywhere"))
        }
    }
}
