//! `gradwire top`: the job in a terminal, now. Like `status` it asks the scheduler, and must not compute anything the scheduler
//! did not say.

mod screen;
mod sheet;
mod terminal;
mod view;

use crate::status::{Whom, get_status, run_printing};
use clap::Args;
use daemon::exit::WithCode as _;
use proto_common::error::ExitCode;
use ratatui::crossterm::event::Event;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};
use terminal::Screen;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use view::{Answer, View};

/// Milliseconds between two looks.
const LOOK_MS: u64 = 1_000;
/// Answers that wait to be shown.
const ANSWERS_MAX: usize = 4;

/// Watch a job in the terminal: rounds and their rate, stragglers, links with transport and rate, the oldest waiting
/// operation, memory and credits of servers. The view refreshes every second; if the scheduler stops answering, it shows for
/// how long.
///
/// Keys: Tab or 1 to 5 select a table, arrow and Page keys scroll, s sorts by the next column, r reverses the order, q or
/// Ctrl-C quits. A narrow terminal shows only the most important columns. If the output is not a terminal, one frame is
/// printed as plain text, as with --once.
///
/// Exit code: 0, or 69 if the scheduler does not answer at the start.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    whom: Whom,
    /// Print one frame with all tables as plain text, and exit.
    #[arg(long)]
    once: bool,
}

pub(crate) fn run(args: &TopArgs) -> Result<(), anyhow::Error> {
    let address = args.whom.address()?;
    let is_watching = !args.once && io::stdout().is_terminal();
    let top = async {
        // Whoever mistyped the address reads that where it was typed.
        let (status, _) = get_status(&address).await?;
        let mut view = View::new(Instant::now());
        view.answered(Ok(status), Instant::now());
        match is_watching {
            true => watch(view, address).await,
            false => print(&view),
        }
    };
    run_printing(top)
}

fn print(view: &View) -> Result<(), anyhow::Error> {
    let width = io::stdout().is_terminal().then(terminal::width).flatten().unwrap_or(u16::MAX);
    let mut out = io::stdout().lock();
    for line in screen::whole(view, usize::from(width), Instant::now()) {
        writeln!(out, "{}", line.to_string().trim_end())?;
    }
    Ok(())
}

async fn watch(mut view: View, address: String) -> Result<(), anyhow::Error> {
    let mut shutdown = daemon::shutdown::on_signals()?;
    let mut screen = Screen::open()?;
    let mut input = terminal::input();
    let mut answers = asking(address);
    // What is shown as "since" goes on while no answer comes.
    let mut clock = interval(Duration::from_millis(LOOK_MS));
    loop {
        screen.draw(|area, buffer| screen::draw(&mut view, area, buffer, Instant::now()))?;
        tokio::select! {
            event = input.recv() => match event {
                Some(Ok(Event::Key(key))) => if !view.key(key) { return Ok(()) },
                // A new size is seen by the next drawing.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).code(ExitCode::Io).map_err(Into::into),
                None => return Ok(()),
            },
            Some(answer) = answers.recv() => view.answered(answer, Instant::now()),
            _ = shutdown.wait() => return Ok(()),
            _ = clock.tick() => {}
        }
    }
}

/// Asks for ever, or until nobody wants to know.
fn asking(address: String) -> mpsc::Receiver<Answer> {
    let (tell, answers) = mpsc::channel(ANSWERS_MAX);
    tokio::spawn(async move {
        let mut clock = interval(Duration::from_millis(LOOK_MS));
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            let answer = get_status(&address).await;
            let answer = answer.map(|(status, _)| status).map_err(|error| error.to_string());
            if tell.send(answer).await.is_err() {
                return;
            }
        }
    });
    answers
}
