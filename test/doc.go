// Package test checks what the repository says of itself: that each promise of
// README.md beside this file has its tests, that the messages and events in docs
// are those of the programs and that none is missing there, that no program reads what it
// says to people, and that the table of the chart's values is true.
//
// None is missing of these: the reasons in a word (those of package placement, and whatever is
// written into a field Reason), the reasons of Events, the conditions and their reasons, the
// alerts, and of the messages for people those that a pod is answered that waits: the words
// of verdicts, of what else refuses nodes, and of what cannot be read of a pod. The device
// plugin's errors are not among them: most name what should never be.
//
// The packages below are for a real cluster and what runs on one. They are a module of
// their own, so that nothing that only tests need (Kubernetes' client helpers, a
// browser) is among the dependencies of what is installed.
package test
