// Package docs holds README.md, docs and the chart's README to what is there:
// each command in them is tried, and each link leads somewhere.
//
// # How a command is tried
//
//   - A block of shell is run as it stands, page by page, on a cluster with
//     simulated GPUs, and has to succeed. On the PATH are kubectl, helm, gpumem's
//     own programs, the machine's small tools, and nothing else.
//   - A command in a sentence, or one that is shown with its output, may name a
//     pod that is nowhere. Its subcommand and its flags are tried, with --help.
//   - make says what it would do (--dry-run).
//   - Other programs are not here: a vendor's tools, a machine of a control plane,
//     a GPU. Each is listed, with the reason. A program that is not on the list
//     fails the test, and so does one that no page names any more.
//   - helm installs with the values of the demo beside the page's own, because
//     images come from no registry. On a page about clusters of vendors it is a
//     dry run on the server: there are no such nodes.
package docs
