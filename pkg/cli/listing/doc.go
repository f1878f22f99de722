// Package listing prints rows as a table, JSON, YAML, names or custom columns. It sorts the rows, and a
// watch prints rows again when they change.
//
// # Invariants
//
//   - A View defines the rows and columns of a list. The Flags select format, order and rows. All lists
//     have the same formats.
//   - The package reports unreadable objects on stderr after the rows. While the pods are unreadable, a
//     watch reports none of them as ended.
//
// # Decisions
//
// A watch prints a row again only if one of its visible cells changes. A watch ignores columns that show an age.
//
// --sort-by takes a field of the JSON form, which -o json shows, so users need not learn names of
// columns.
package listing
