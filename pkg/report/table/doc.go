// Package table prints rows in aligned columns for people, and as a list for programs.
//
// # Invariants
//
//   - Characters that control a terminal or break a line are replaced.
//   - If the caller keeps the layout, later rows line up with earlier ones.
//
// # Decisions
//
// Colours repeat what words or marks say, and bars repeat the number after them. The package prints both
// only if the caller reports a terminal.
package table
