// Package clirun runs the tree of commands for tests, against a cluster of objects (see clitest).
// It is imported by tests alone, which are outside of the packages that they test: it imports all
// commands.
package clirun
