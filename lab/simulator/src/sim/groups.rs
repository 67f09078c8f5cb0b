//! Which traces show the same program, used by different people, and which apps count in a mean.

use super::compare::NamedStream;
use super::outcome::Outcome;

/// Pages that an app must have flushed under ext4, over all its users, to count in any mean: with
/// fewer a comparison of policies is meaningless.
pub const PAGES_MIN: u64 = 64;

/// An app in one trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The trace, by its place among all.
    pub trace: usize,
    /// The app, by its number in the trace's stream.
    pub app: usize,
}

/// One app of one program, in the traces of all users of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppGroup {
    /// Program and app; the program alone if it has one app.
    pub name: String,
    /// The program.
    pub program: String,
    /// One for each trace that has the app.
    pub members: Vec<Member>,
}

impl AppGroup {
    /// Pages that were flushed, by the outcomes of all traces under one contender.
    pub fn flushed_pages(&self, outcomes: &[&Outcome]) -> u64 {
        let members = self.members.iter();
        members
            .map(|member| outcomes[member.trace].apps[member.app].flushed_pages)
            .sum()
    }
}

/// The program of a trace: its name without an ending, and without the number of a user
/// (`desk-u2.parquet` is the program `desk`).
fn program(trace: &str) -> &str {
    let name = trace.trim_end_matches(".parquet");
    match name.rsplit_once("-u") {
        Some((program, user))
            if !program.is_empty()
                && !user.is_empty()
                && user.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            program
        }
        _ => name,
    }
}

/// Groups the apps of all traces, in the order in which they come.
pub fn app_groups(traces: &[NamedStream]) -> Vec<AppGroup> {
    let mut groups: Vec<(&str, AppGroup)> = Vec::new();
    for (trace, named) in traces.iter().enumerate() {
        let program = program(&named.name);
        for (app, app_name) in named.stream.apps.iter().enumerate() {
            let member = Member { trace, app };
            let known = groups
                .iter_mut()
                .find(|(name, group)| name == app_name && group.program == program);
            match known {
                Some((_, group)) => group.members.push(member),
                None => groups.push((
                    app_name,
                    AppGroup {
                        name: format!("{program}: {app_name}"),
                        program: program.to_owned(),
                        members: vec![member],
                    },
                )),
            }
        }
    }
    let mut groups: Vec<AppGroup> = groups.into_iter().map(|(_, group)| group).collect();
    let programs: Vec<String> = groups.iter().map(|group| group.program.clone()).collect();
    for group in &mut groups {
        if programs
            .iter()
            .filter(|program| **program == group.program)
            .count()
            == 1
        {
            group.name.clone_from(&group.program);
        }
    }
    groups
}

/// The groups that count, and the names of those that wrote too little to; `ext4` has the outcome of every
/// trace under ext4.
pub(crate) fn counted(groups: Vec<AppGroup>, ext4: &[&Outcome]) -> (Vec<AppGroup>, Vec<String>) {
    let (counted, others): (Vec<AppGroup>, Vec<AppGroup>) = groups
        .into_iter()
        .partition(|group| group.flushed_pages(ext4) >= PAGES_MIN);
    let others = others.into_iter();
    let others = others.filter(|group| group.flushed_pages(ext4) > 0);
    (counted, others.map(|group| group.name).collect())
}

#[cfg(test)]
mod tests {
    use super::super::stream::Stream;
    use super::*;

    #[test]
    fn traces_of_one_program_are_its_users() {
        for (trace, expected) in [
            ("desk.parquet", "desk"),
            ("desk-u1.parquet", "desk"),
            ("desk-u12", "desk"),
            ("desk-usual", "desk-usual"),
            ("desk-u", "desk-u"),
            ("-u1", "-u1"),
        ] {
            assert_eq!(program(trace), expected, "{trace}");
        }
        let trace = |name: &str, apps: &[&str]| NamedStream {
            name: name.to_owned(),
            stream: Stream {
                apps: apps.iter().map(|app| (*app).to_owned()).collect(),
                ..Stream::default()
            },
        };
        let traces = [
            trace("desk-u1.parquet", &["notes", "chat"]),
            trace("git.parquet", &["git"]),
            trace("desk-u2.parquet", &["chat"]),
        ];
        let groups = app_groups(&traces);
        let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["desk: notes", "desk: chat", "git"]);
        let chat = [Member { trace: 0, app: 1 }, Member { trace: 2, app: 0 }];
        assert_eq!(groups[1].members, chat);
    }
}
