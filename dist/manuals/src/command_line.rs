//! The command lines as a user types them.
//!
//! `mobifs flash …` is run by the laboratory's program, and `mobifs` itself knows no more of it than the name.
//! Here the laboratory's commands take the places of those names, and the command line of `mobifs-top` that of `top`.

use clap::Command;

/// What is installed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Package {
    /// What a device with a mount needs.
    Product,
    /// Traces, simulation, the flash device.
    Laboratory,
}

impl Package {
    /// The name of its program.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Product => "mobifs",
            Self::Laboratory => "mobifs-lab",
        }
    }
}

/// The command that hands all its words to the laboratory: `mobifs lab WORD…`.
const LABORATORY: &str = "lab";

/// The command that hands all its words to `mobifs-top`, which is installed with the product.
const TOP: &str = "top";

/// Both command lines.
#[derive(Debug)]
pub(crate) struct CommandLines {
    /// `mobifs`, with the laboratory's commands in it.
    product: Command,
    laboratory: Command,
    /// Names of the product's commands that the laboratory runs.
    handed_over: Vec<String>,
}

impl CommandLines {
    pub(crate) fn new() -> Self {
        let laboratory = mobifs_lab_cli::command();
        let mut product = mobifs_cli::command();
        let handed_over: Vec<String> = names(&product)
            .filter(|name| *name == LABORATORY || laboratory.find_subcommand(name).is_some())
            .map(str::to_owned)
            .collect();
        let all: Vec<String> = names(&product).map(str::to_owned).collect();
        for (order, name) in all.iter().enumerate() {
            let is_handed_over = handed_over.contains(name);
            product = product.mut_subcommand(name, |own| {
                if name == TOP {
                    return mobifs_top::command().name(TOP).display_order(order);
                }
                let shown = match laboratory.find_subcommand(name) {
                    Some(command) if is_handed_over => command.clone(),
                    None if is_handed_over => rest_of(&laboratory, &handed_over),
                    _ => own,
                };
                shown.display_order(order)
            });
        }
        Self {
            product: built(product),
            laboratory: built(laboratory),
            handed_over,
        }
    }

    /// What a shell completes.
    pub(crate) fn completed(&self, package: Package) -> Command {
        shown(match package {
            Package::Product => &self.product,
            Package::Laboratory => &self.laboratory,
        })
    }

    /// Every command that help shows, with the package that its page belongs to.
    pub(crate) fn pages(&self) -> Vec<(Package, &Command)> {
        let mut pages = vec![(Package::Product, &self.product)];
        for command in self.product.get_subcommands() {
            let is_handed_over = self
                .handed_over
                .iter()
                .any(|name| name == command.get_name());
            let package = if is_handed_over {
                Package::Laboratory
            } else {
                Package::Product
            };
            add_pages(command, package, &mut pages);
        }
        pages
    }
}

/// A program's command line without its hidden commands, which completions would offer.
fn shown(program: &Command) -> Command {
    let is_shown = |command: &&Command| !command.is_hide_set();
    let mut command = Command::new(program.get_name().to_owned())
        .disable_help_subcommand(true)
        .subcommands(program.get_subcommands().filter(is_shown).cloned());
    // Its own arguments are those that each program has.
    if let Some(version) = program.get_version() {
        command = command.version(version.to_owned());
    }
    if let Some(about) = program.get_about() {
        command = command.about(about.clone());
    }
    command
}

/// `mobifs lab`: the laboratory without the commands that `mobifs` has by their own names.
fn rest_of(laboratory: &Command, handed_over: &[String]) -> Command {
    let is_rest = |command: &&Command| handed_over.iter().all(|name| name != command.get_name());
    let rest = laboratory.get_subcommands().filter(is_rest).cloned();
    let mut command = Command::new(LABORATORY)
        .subcommands(rest)
        .subcommand_required(true);
    if let Some(about) = laboratory.get_about() {
        command = command.about(about.clone());
    }
    command
}

/// With the full names of all commands below it (`mobifs-flash-serve`).
fn built(command: Command) -> Command {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

fn names(command: &Command) -> impl Iterator<Item = &str> {
    command.get_subcommands().map(Command::get_name)
}

fn add_pages<'a>(command: &'a Command, package: Package, pages: &mut Vec<(Package, &'a Command)>) {
    if command.is_hide_set() {
        return;
    }
    pages.push((package, command));
    for command in command.get_subcommands() {
        add_pages(command, package, pages);
    }
}
