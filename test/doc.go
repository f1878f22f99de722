// Package test checks what the repository says of itself: that each promise of
// README.md beside this file has its tests, that the messages and events in docs
// are those of the programs, that no program reads what it says to people, and that the table
// of the chart's values is true.
//
// The packages below are for a real cluster and what runs on one. They are a module of
// their own, so that nothing that only tests need (Kubernetes' client helpers, a
// browser) is among the dependencies of what is installed.
package test
