//! Sparse tables: rows under u64 ids, pushed and pulled from plain memory. Where a row is, is the library's business.

use crate::border::{object, put, slice, slice_mut};
use crate::client::GradwireClient;
use crate::error::{Failure, GradwireCode, guard, guard_or};
use crate::optimizer::GradwireOptimizer;
use gradwire_worker::{Client, ClientError, RowsHandle, Table};
use proto_common::table::{Initial, TableSpec};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A declared table. Its functions may be called from any thread. Freed with `gradwire_table_free`, which leaves the table
/// itself where it is.
#[derive(Debug)]
pub struct GradwireTable(Table);

/// A push of rows in flight. It ends by itself. Freed with `gradwire_rows_free`.
#[derive(Debug)]
pub struct GradwireRowsHandle(Mutex<Option<RowsHandle>>);

/// What a row holds before anybody has pushed to it.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireInitial {
    /// All elements are `low`.
    Constant = 0,
    /// Evenly spread from `low` to below `high`; a function of `seed`, the row's id and the element's place only.
    Uniform = 1,
}

/// What a table is. Every worker declares the same. Set all of it to zeros before filling it: then rows begin with zeros, are
/// made at their first touch, and stay.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireTableSpec {
    /// Its key, below 65536; tensors' keys are others.
    pub key: u32,
    /// Floats of a row, at most 65536.
    pub width: u32,
    /// A `GradwireInitial`.
    pub initial: i32,
    /// See `GradwireInitial`.
    pub low: f32,
    /// See `GradwireInitial`.
    pub high: f32,
    /// See `GradwireInitial`.
    pub seed: u64,
    /// Pushes before a row gets memory: with this one it does, and those before are left out. 0 and 1: at its first push. Pulls do
    /// not count: they bring what a row would begin with.
    pub admit_after: u32,
    /// Rows that are kept: beyond that those go that were pushed to least recently. 0: no limit.
    pub rows_max: u64,
    /// Applied to each row by itself, at once, with what one push has for it. Any rule but LAMB.
    pub optimizer: GradwireOptimizer,
}

impl GradwireTableSpec {
    fn typed(&self) -> Result<TableSpec, Failure> {
        let initial = match self.initial {
            0 => Initial::Constant(self.low),
            1 => Initial::Uniform { low: self.low, high: self.high, seed: self.seed },
            initial => {
                let text = format!("initial {initial} is none; use a GRADWIRE_INITIAL_ constant");
                return Err(Failure::argument(text));
            }
        };
        let spec = TableSpec::new(self.key, self.width, self.optimizer.typed()?, initial);
        Ok(TableSpec { admit_after: self.admit_after, rows_max: self.rows_max, ..spec })
    }
}

impl GradwireRowsHandle {
    fn lock(&self) -> MutexGuard<'_, Option<RowsHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Declares a table at all servers. Repeating it is harmless; another declaration of a known key is refused. Waits for the
/// servers, at most `deadlines.operation_ms`.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_declare_table(
    client: Option<&GradwireClient>,
    spec: Option<&GradwireTableSpec>,
    table: Option<&mut MaybeUninit<Option<Box<GradwireTable>>>>,
) -> GradwireCode {
    guard(|| {
        let client = object(client, "client")?.client();
        let place = table.ok_or_else(|| Failure::null("table"))?;
        let declared = client.declare_table(&object(spec, "spec")?.typed()?)?;
        put(Some(place), "table", Some(Box::new(GradwireTable(declared))))
    })
}

/// Pushes values to rows: `count` ids, and `width` floats for each of them, in their order. The memory is copied during the
/// call. Values of an id that stands there several times are summed first. This worker's later pulls see the push.
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

/// As `gradwire_push_rows`, in a step of the trainer, a number that only grows: what servers have of a step that is repeated after
/// `gradwire_resume` counts once, where the same rows are pushed in the same order. An earlier step than the last one is an error,
/// and nothing is pushed. A process that takes the place of one that has left begins behind that one's last step, or its pushes
/// are not applied.
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
        let (client, table) = (object(client, "client")?.client(), &object(table, "table")?.0);
        let (ids, values) = (slice(ids, count, "ids")?, slice(values, value_count, "values")?);
        let place = handle.ok_or_else(|| Failure::null("handle"))?;
        let pushed = begin(client, table, ids, values)?;
        put(Some(place), "handle", Some(Box::new(GradwireRowsHandle(Mutex::new(Some(pushed))))))
    })
}

/// Brings rows into `out`: `width` floats for each of the `count` ids, in their order. Waits for them, at most
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
        let (client, table) = (object(client, "client")?.client(), &object(table, "table")?.0);
        let (ids, out) = (slice(ids, count, "ids")?, slice_mut(out, out_count, "out")?);
        Ok(client.pull_rows(table, ids, out)?)
    })
}

/// Waits until all rows of a push have been pushed to. A second wait is `GRADWIRE_CODE_ALREADY_WAITED`.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_rows_wait(handle: Option<&GradwireRowsHandle>) -> GradwireCode {
    guard(|| {
        let text = "the rows were waited for already; wait once for each push";
        let waited = || Failure::new(GradwireCode::AlreadyWaited, text);
        Ok(object(handle, "handle")?.lock().take().ok_or_else(waited)?.wait()?)
    })
}

/// 1 where the push has ended, so that waiting takes no time; else 0. 1 for null and after a wait.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_rows_is_done(handle: Option<&GradwireRowsHandle>) -> i32 {
    let done =
        guard_or(true, || Ok(object(handle, "handle")?.lock().as_ref().is_none_or(RowsHandle::is_done)));
    i32::from(done)
}

/// Frees a push's handle. Null is fine. The push goes on.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_rows_free(handle: Option<Box<GradwireRowsHandle>>) {
    guard(|| {
        drop(handle);
        Ok(())
    });
}

/// Floats of one of its rows. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_table_width(table: Option<&GradwireTable>) -> u32 {
    table.map_or(0, |table| table.0.spec().width)
}

/// Frees what stands for the table. Null is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_table_free(table: Option<Box<GradwireTable>>) {
    drop(table);
}
