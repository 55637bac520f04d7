//! Sparse tables through real servers, over shm and over tcp: rows as every worker sees them, whatever the spread over
//! servers and lanes; duplicates; declarations that differ; requests that no table has.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::over_each;
use gradwire_tests::rigs::bed::Bed;
use proto_common::optimizer::{AdaGrad, Optimizer};
use proto_common::table::{Initial, TABLE_APPS, TableSpec};
use proto_common::transport::Driver;
use std::collections::BTreeMap;

const WIDTH: usize = 64;
const UNIFORM: Initial = Initial::Uniform { low: -0.1, high: 0.1, seed: 11 };

over_each!(
    rows_are_what_was_pushed_to_them,
    an_id_may_stand_there_any_number_of_times,
    a_server_without_room_says_so,
    rules_schedules_and_limits_hold,
    what_cannot_be_is_told
);

fn spec(key: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec::new(key, WIDTH as u32, optimizer, UNIFORM)
}

fn initial(id: u64) -> Vec<f32> {
    let mut row = vec![0.0; WIDTH];
    UNIFORM.fill(id, &mut row);
    row
}

/// Several parts, and several requests for each of them.
fn rows_are_what_was_pushed_to_them(driver: Driver) {
    const ROWS: usize = 30_000;
    for (servers, lanes) in [(1, 1), (2, 2)] {
        let bed = Bed::new(driver, (servers, 2), |settings| settings.cluster.lanes = lanes);
        let tables: Vec<_> = bed
            .clients
            .iter()
            .map(|client| client.declare_table(&spec(3, Optimizer::sum())).unwrap())
            .collect();
        let id = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let ids: Vec<u64> = (0..ROWS).map(id).collect();
        let mut out = vec![0.0; ROWS * WIDTH];
        bed.clients[0].pull_rows(&tables[0], &ids, &mut out).unwrap();
        for (id, row) in ids.iter().zip(out.chunks(WIDTH)) {
            assert_eq!(row, initial(*id));
        }
        // Each worker pushes what nobody else does; some ids stand there twice.
        std::thread::scope(|scope| {
            for (client, table) in bed.clients.iter().zip(&tables) {
                scope.spawn(|| {
                    let ids: Vec<u64> = (0..ROWS).map(|at| id(at % (ROWS - 1000))).collect();
                    let value = client.rank() as f32 + 1.0;
                    let values: Vec<f32> = vec![value; ROWS * WIDTH];
                    client.push_rows(table, &ids, &values).unwrap().wait().unwrap();
                });
            }
        });
        bed.clients[1].pull_rows(&tables[1], &ids, &mut out).unwrap();
        for (at, row) in out.chunks(WIDTH).enumerate() {
            let times = f32::from(u8::from(at < ROWS - 1000) + u8::from(at < 1000));
            let want = initial(id(at)).into_iter().map(|number| number + 3.0 * times);
            assert!(row.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-5), "row {at}");
        }
        bed.clients[0].pull_rows(&tables[0], &[], &mut []).unwrap();
        bed.clients[0].push_rows(&tables[0], &[], &[]).unwrap().wait().unwrap();
        bed.end();
    }
}

/// More values of one id than a request has room for are one update all the same, among others that are as usual.
fn an_id_may_stand_there_any_number_of_times(driver: Driver) {
    const TIMES: usize = (16 << 20) / (4 * WIDTH) + 1000;
    let bed = Bed::new(driver, (1, 1), |settings| settings.cluster.lanes = 2);
    let client = &bed.clients[0];
    let zero = TableSpec::new(3, WIDTH as u32, Optimizer::assign(), Initial::Constant(0.0));
    let table = client.declare_table(&zero).unwrap();
    let ids: Vec<u64> =
        (0..4 * TIMES as u64).map(|at| if at % 4 == 1 { 7 } else { 100 + at % 1000 }).collect();
    let values = vec![1.0; ids.len() * WIDTH];
    client.push_rows(&table, &ids, &values).unwrap().wait().unwrap();
    let mut out = vec![0.0; 2 * WIDTH];
    client.pull_rows(&table, &[7, 100], &mut out).unwrap();
    // A row becomes the sum of its values.
    let of = |id: u64| ids.iter().filter(|other| **other == id).count() as f32;
    assert_eq!((out[0], out[2 * WIDTH - 1]), (TIMES as f32, of(100)));
    bed.end();
}

fn rules_schedules_and_limits_hold(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |settings| settings.cluster.lanes = 2);
    let client = &bed.clients[0];
    let pull = |table: &gradwire_worker::Table, ids: &[u64]| {
        let mut out = vec![0.0; ids.len() * WIDTH];
        client.pull_rows(table, ids, &mut out).unwrap();
        out.chunks(WIDTH).map(|row| row[0]).collect::<Vec<f32>>()
    };
    let push = |table: &gradwire_worker::Table, ids: &[u64], value: f32| {
        client.push_rows(table, ids, &vec![value; ids.len() * WIDTH]).unwrap().wait().unwrap();
    };
    let zero = Initial::Constant(0.0);
    let ada_grad = Optimizer::mean(AdaGrad { epsilon: 1e-10 }, 1.0);
    let table = client.declare_table(&TableSpec { initial: zero, ..spec(1, ada_grad) }).unwrap();
    push(&table, &[5, 6, 5], 2.0);
    push(&table, &[5], 4.0);
    // 4 by its own root, then 4 by the root of 32: the duplicate was summed first.
    let found = pull(&table, &[5, 6]);
    assert!((found[0] + 1.0 + 4.0 / 32f32.sqrt()).abs() < 1e-5 && (found[1] + 1.0).abs() < 1e-5, "{found:?}");
    let late = TableSpec { initial: zero, admit_after: 3, ..spec(2, Optimizer::sum()) };
    let table = client.declare_table(&late).unwrap();
    (0..4).for_each(|_| push(&table, &[9], 1.0));
    assert_eq!(pull(&table, &[9]), [2.0], "its first two pushes were left out");
    let few = TableSpec { initial: zero, rows_max: 100, ..spec(3, Optimizer::sum()) };
    let table = client.declare_table(&few).unwrap();
    for id in 0..1000 {
        push(&table, &[id], 1.0);
    }
    let kept: BTreeMap<u64, f32> = (0..1000).map(|id| (id, pull(&table, &[id])[0])).collect();
    let kept = kept.values().filter(|value| **value == 1.0).count();
    // Pulls make no rows, so none went for them.
    assert!((90..=100).contains(&kept), "{kept}");
    bed.end();
}

fn what_cannot_be_is_told(driver: Driver) {
    let bed = Bed::new(driver, (1, 2), |_| {});
    let (client, other) = (&bed.clients[0], &bed.clients[1]);
    let table = client.declare_table(&spec(1, Optimizer::sum())).unwrap();
    other.declare_table(&spec(1, Optimizer::sum())).unwrap();
    let told = |error: gradwire_worker::ClientError, why: &str| {
        let text = error.to_string();
        assert!(text.contains("table 1") && text.contains(why), "{text}");
    };
    told(other.declare_table(&spec(1, Optimizer::assign())).unwrap_err(), "declared before");
    told(client.declare_table(&TableSpec { width: 0, ..spec(1, Optimizer::sum()) }).unwrap_err(), "width");
    told(
        client.push_rows(&table, &[1, 2], &[0.0; WIDTH]).unwrap_err(),
        "2 rows of 64 elements do not match an array of 64",
    );
    told(client.pull_rows(&table, &[1], &mut [0.0; 3]).unwrap_err(), "do not match an array of 3");
    told(other.pull_rows(&table, &[1], &mut [0.0; WIDTH]).unwrap_err(), "another client");
    let call = client.call(TABLE_APPS, 0, gradwire_worker::CallRequest::default()).unwrap_err();
    assert!(call.to_string().contains("tables"), "{call}");
    let taken = bed.servers[0].register(TABLE_APPS, |_: gradwire_server::Call| {}).unwrap_err();
    assert!(taken.to_string().contains("tables"), "{taken}");
    bed.end();
}

fn a_server_without_room_says_so(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |settings| {
        (settings.cluster.lanes, settings.memory.table_bytes) = (1, 4 << 20);
    });
    let client = &bed.clients[0];
    let table = client.declare_table(&spec(1, Optimizer::sum())).unwrap();
    let limited = TableSpec { rows_max: 1000, ..spec(2, Optimizer::sum()) };
    let limited = client.declare_table(&limited).unwrap();
    let mut out = vec![0.0; 1000 * WIDTH];
    let pull = |table: &gradwire_worker::Table, from: u64, out: &mut [f32]| {
        client.pull_rows(table, &(from..from + 1000).collect::<Vec<u64>>(), out)
    };
    for lap in 0..30 {
        let ids: Vec<u64> = (lap * 1000..(lap + 1) * 1000).collect();
        // Told by the push itself, where one of its parts was answered before all were sent.
        let pushed = client.push_rows(&table, &ids, &vec![1.0; 1000 * WIDTH]);
        assert!(pushed.and_then(|pushed| pushed.wait()).is_ok() || lap > 0);
    }
    // 4 MiB hold no 30,000 rows: the last ones are not there.
    pull(&table, 29_000, &mut out).unwrap();
    assert_eq!(out[999 * WIDTH..], initial(29_999));
    let push = |id| client.push_rows(&table, &[id], &[1.0; WIDTH]).unwrap().wait();
    let full = push(29_999).unwrap_err();
    assert!(full.to_string().contains("memory.table_bytes"), "{full}");
    push(0).unwrap();
    // A table with a limit of its own makes room for what is new.
    for lap in 0..30 {
        let ids: Vec<u64> = (lap * 1000..(lap + 1) * 1000).collect();
        client.push_rows(&limited, &ids, &vec![1.0; 1000 * WIDTH]).unwrap().wait().unwrap();
    }
    pull(&limited, 29_000, &mut out).unwrap();
    let want: Vec<f32> = initial(29_999).into_iter().map(|number| number + 1.0).collect();
    assert_eq!(out[999 * WIDTH..], want);
    bed.end();
}
