// Package table prints rows in columns for people, and as a list for programs.
//
// # Invariants
//
//   - Characters that would steer a terminal or break a line are replaced.
//   - What is printed later lines up with what was printed before, where the caller keeps the widths.
//
// # Decisions
//
// Colours say nothing that words or marks do not say as well, and bars nothing that the number
// after them does not say. Both are printed only where the caller says that a terminal reads them.
package table
