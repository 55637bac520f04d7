//! Sparse tables: rows under u64 ids, pushed and pulled from plain memory. The library finds the server of each row.

use crate::border::{lock, make, object, slice, slice_mut};
use crate::client::GradwireClient;
use crate::error::{Failure, GradwireCode, free, guard, guard_or};
use crate::optimizer::GradwireOptimizer;
use gradwire_worker::{Client, ClientError, RowsHandle, Table};
use proto_common::table::{Initial, TableSpec};
use std::mem::MaybeUninit;
use std::sync::Mutex;

/// A declared table. Any thread may call its functions. `gradwire_table_free` frees only this object and not the
/// table.
#[derive(Debug)]
pub struct GradwireTable(Table);

/// A push of rows in flight. It ends by itself. Free it with `gradwire_rows_free`.
#[derive(Debug)]
pub struct GradwireRowsHandle(Mutex<Option<RowsHandle>>);

/// Initial values of a row.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireInitial {
    /// All elements are `low`.
    Constant = 0,
    /// Uniformly distributed from `low` to below `high`. The values depend only on `seed`, the row's id and the
    /// element's position.
    Uniform = 1,
}

/// Declaration of a table. All workers must declare the same. Initialise the structure with zeros: then rows begin
/// with zeros, are created at their first push, and stay.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireTableSpec {
    /// The key, below 65536. Tensors have separate keys.
    pub key: u32,
    /// Floats per row, at most 65536.
    pub width: u32,
    /// A `GradwireInitial`.
    pub initial: i32,
    /// See `GradwireInitial`.
    pub low: f32,
    /// See `GradwireInitial`.
    pub high: f32,
    /// See `GradwireInitial`.
    pub seed: u64,
    /// How many pushes a row needs before it gets memory; earlier ones are dropped. 0 and 1: at its first push. Pulls
    /// do not count: they return initial values.
    pub admit_after: u32,
    /// The largest number of rows. Beyond that, the rows with the oldest last push are evicted. 0: no limit.
    pub rows_max: u64,
    /// The update rule, applied to each row separately, with the sum of one push's gradients for it. Any rule except
    /// LAMB.
    pub optimizer: GradwireOptimizer,
}

impl GradwireTableSpec {
    fn typed(&self) -> Result<TableSpec, Failure> {
        let initial = match self.initial {
            0 => Initial::Constant(self.low),
            1 => Initial::Uniform { low: self.low, high: self.high, seed: self.seed },
            initial => {
                let text = format!("invalid initial {initial}; use a GRADWIRE_INITIAL_ constant");
                return Err(Failure::argument(text));
            }
        };
        let spec = TableSpec::new(self.key, self.width, self.optimizer.typed()?, initial);
        Ok(TableSpec { admit_after: self.admit_after, rows_max: self.rows_max, ..spec })
    }
}

/// Declares a table on all servers. A repeated declaration has no effect; a different declaration of a known key is
/// refused. Waits for the servers, at most `deadlines.operation_ms`.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_declare_table(
    client: Option<&GradwireClient>,
    spec: Option<&GradwireTableSpec>,
    table: Option<&mut MaybeUninit<Option<Box<GradwireTable>>>>,
) -> GradwireCode {
    guard(|| {
        let client = &object(client, "client")?.client;
        let spec = object(spec, "spec")?.typed()?;
        make(table, "table", || Ok(GradwireTable(client.declare_table(&spec)?)))
    })
}

/// Pushes values to rows: `count` ids, and `width` floats for each of them, in the same order. The memory is copied
/// during the call. Values of repeated ids are summed first. This worker's later pulls include the push.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_push_rows(
    client: Option<&GradwireClient>,
    table: Option<&GradwireTable>,
    ids: *const u64,
    count: u64,
    values: *const f32,
    value_count: u64,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireRowsHandle>>>>,
) -> GradwireCode {
    push(client, table, (ids, count), (values, value_count), handle, Client::push_rows)
}

/// As `gradwire_push_rows`, in a step of the trainer, a number that only grows. If a step is repeated after
/// `gradwire_resume`, what servers already have of it counts once, provided the same rows are pushed in the same
/// order. A step before the last one is an error, and nothing is pushed. A process that replaces one that has left
/// must begin after that one's last step; otherwise its pushes are not applied.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_push_rows_in_step(
    client: Option<&GradwireClient>,
    table: Option<&GradwireTable>,
    step: u64,
    ids: *const u64,
    count: u64,
    values: *const f32,
    value_count: u64,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireRowsHandle>>>>,
) -> GradwireCode {
    push(client, table, (ids, count), (values, value_count), handle, |client, table, ids, values| {
        client.push_rows_in_step(table, step, ids, values)
    })
}

fn push(
    client: Option<&GradwireClient>,
    table: Option<&GradwireTable>,
    (ids, count): (*const u64, u64),
    (values, value_count): (*const f32, u64),
    handle: Option<&mut MaybeUninit<Option<Box<GradwireRowsHandle>>>>,
    begin: impl FnOnce(&Client, &Table, &[u64], &[f32]) -> Result<RowsHandle, ClientError>,
) -> GradwireCode {
    guard(|| {
        let (client, table) = (&object(client, "client")?.client, &object(table, "table")?.0);
        let (ids, values) = (slice(ids, count, "ids")?, slice(values, value_count, "values")?);
        make(handle, "handle", || {
            Ok(GradwireRowsHandle(Mutex::new(Some(begin(client, table, ids, values)?))))
        })
    })
}

/// Reads rows into `out`: `width` floats for each of the `count` ids, in the same order. Waits for them, at most
/// `deadlines.operation_ms`.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_pull_rows(
    client: Option<&GradwireClient>,
    table: Option<&GradwireTable>,
    ids: *const u64,
    count: u64,
    out: *mut f32,
    out_count: u64,
) -> GradwireCode {
    guard(|| {
        let (client, table) = (&object(client, "client")?.client, &object(table, "table")?.0);
        let (ids, out) = (slice(ids, count, "ids")?, slice_mut(out, out_count, "out")?);
        Ok(client.pull_rows(table, ids, out)?)
    })
}

/// Waits until a push of rows is complete. A second wait returns `GRADWIRE_CODE_ALREADY_WAITED`.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_rows_wait(handle: Option<&GradwireRowsHandle>) -> GradwireCode {
    guard(|| {
        let text = "the rows have already been waited for; wait once per push";
        let waited = || Failure::new(GradwireCode::AlreadyWaited, text);
        Ok(lock(&object(handle, "handle")?.0).take().ok_or_else(waited)?.wait()?)
    })
}

/// 1 if the push has ended, so that a wait returns at once; otherwise 0. 1 for null and after a wait.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_rows_is_done(handle: Option<&GradwireRowsHandle>) -> i32 {
    let done =
        guard_or(true, || Ok(lock(&object(handle, "handle")?.0).as_ref().is_none_or(RowsHandle::is_done)));
    i32::from(done)
}

/// Frees a push's handle. Null is allowed. The push continues.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_rows_free(handle: Option<Box<GradwireRowsHandle>>) {
    free(handle);
}

/// Floats per row. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_table_width(table: Option<&GradwireTable>) -> u32 {
    table.map_or(0, |table| table.0.spec().width)
}

/// Frees the object, and not the table. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_table_free(table: Option<Box<GradwireTable>>) {
    free(table);
}
