// Package page serves what people read of the extender: a page that shows the
// fleet, GPU by GPU, and the pods that wait; and what the extender remembers of its decisions.
//
// # Invariants
//
//   - It reads, and answers GET and HEAD alone. What it shows is what the
//     extender's cache says, and of nodes and pods that wait what package reach
//     does: the same as kubectl inspect gpumem.
//   - No request of the page leaves for another host: all that it needs is
//     embedded, and its Content-Security-Policy lets it ask no one else.
//   - It answers only who calls it by a name of the loopback: another name that
//     leads here is some site's attempt to read through a visitor's browser.
//
// # Decisions
//
// It is served on a port of its own: people forward that port to their machine,
// where any site that they visit could send requests to it. The port of the verbs,
// which bind pods, must not be reached so.
//
// The page asks every two seconds and is sent the fleet when that has changed.
// It is put together at most once in a second, however many look on.
//
// The front end is three files that browsers read as they are: no framework and no build. It
// draws the nodes that are seen, and no others, so that thousands cost what a screen does. Names
// come from other people's objects: they are set as text, never as HTML.
package page
