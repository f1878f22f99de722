// Package table prints rows in aligned columns for people, and as a list for programs.
//
// # Invariants
//
//   - The package replaces characters that control a terminal or break a line.
//   - If the caller passes the Layout of earlier rows, new rows align with them.
//
// # Decisions
//
// A colour repeats the meaning of a word or mark, and a bar repeats the number after it. The package
// prints colours and bars only if the caller reports a terminal.
package table
