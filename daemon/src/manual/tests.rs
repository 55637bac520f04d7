//! Pages, completions and examples of a program that has a bit of everything.

use super::*;
use clap::Subcommand;

/// Does things.
///
/// At length.
#[derive(Debug, Parser)]
#[command(name = "thing", version, subcommand_required = true)]
struct Thing {
    #[command(subcommand)]
    command: Below,
}

#[derive(Debug, Subcommand)]
enum Below {
    /// Make one.
    Make {
        /// How many.
        #[arg(long, value_name = "N")]
        count: Option<u32>,
    },
    /// Of no use to people.
    #[command(hide = true)]
    Secret,
}

const MANUAL: Manual = Manual {
    examples: "thing make:\n  X=1 thing make --count 3\n      Makes `three`",
    role: Some(Role::Server),
    others: || vec![("thing.toml.5", "text".into())],
};

fn command() -> Command {
    with_manual(<Thing as clap::CommandFactory>::command(), &MANUAL)
}

fn page(name: &str) -> String {
    let all = pages(command(), &MANUAL);
    let text = all.iter().find(|(file, _)| file == name).map(|(_, text)| text.clone());
    text.unwrap_or_else(|| panic!("no {name} in {:?}", all.iter().map(|(file, _)| file).collect::<Vec<_>>()))
}

#[test]
fn each_command_that_is_for_people_has_a_page_with_every_section() {
    let mut names: Vec<_> = pages(command(), &MANUAL).into_iter().map(|(file, _)| file).collect();
    names.sort();
    assert_eq!(names, ["thing-make.1", "thing.1", "thing.toml.5"]);
    let (whole, make) = (page("thing.1"), page("thing-make.1"));
    let sections = [
        "NAME",
        "SYNOPSIS",
        "DESCRIPTION",
        "OPTIONS",
        "EXAMPLES",
        "\"EXIT STATUS\"",
        "ENVIRONMENT",
        "FILES",
        "\"SEE ALSO\"",
    ];
    for section in sections {
        assert!(make.contains(&format!("\n.SH {section}\n")), "{section} in {make}");
    }
    assert!(whole.contains("\n.SH SIGNALS\n") && !make.contains("\n.SH SIGNALS\n"));
    assert!(whole.contains("thing \\- Does things") && !whole.contains("secret"), "{whole}");
    assert!(["SIGTERM", "SIGHUP", "SIGUSR1"].iter().all(|signal| whole.contains(signal)), "{whole}");
    assert!(make.contains("Makes \\fBthree\\fR:") && make.contains("server.toml"), "{make}");
}

#[test]
fn each_shell_gets_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join("new");
    for (kind, file) in [(Kind::Bash, "thing"), (Kind::Zsh, "_thing"), (Kind::Fish, "thing.fish")] {
        generate(command(), &MANUAL, kind, &into).unwrap();
        let text = fs::read_to_string(into.join(file)).unwrap();
        assert!(text.contains("make") && !text.contains("secret"), "{text}");
    }
    generate(command(), &MANUAL, Kind::Man, &into).unwrap();
    assert_eq!(fs::read_dir(&into).unwrap().count(), 6);
    assert!(generate(command(), &MANUAL, Kind::Man, Path::new("/proc/none")).is_err());
}

#[test]
fn what_is_asked_for_is_read_before_the_commands_own_needs() {
    let words = |kind: &str| ["thing", "--generate", kind, "there"].map(OsString::from).to_vec();
    let (kind, directory) = wanted(&command(), words("zsh"));
    assert!(matches!(kind, Kind::Zsh) && directory == Path::new("there"));
}

#[test]
fn examples_stand_in_the_help_and_are_tried() {
    let help = command().find_subcommand_mut("make").unwrap().render_long_help().to_string();
    assert!(help.contains("Examples:\n  X=1 thing make --count 3\n"), "{help}");
    assert_eq!(unfit(&command(), &MANUAL), Vec::<String>::new());
    let others = Manual { examples: "thing take:\n  thing make --number 3\n      Does", ..MANUAL };
    let wrong = unfit(&command(), &others).join("\n");
    assert!(wrong.contains("thing make has no example") && wrong.contains("which is no command"), "{wrong}");
    let others = Manual { examples: "thing make:\n  thing make --number 3\n      Does", ..MANUAL };
    assert!(unfit(&command(), &others).join("\n").contains("--number"));
}
