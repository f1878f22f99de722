// Package clirun runs the command tree in tests, against a fake cluster (package clitest). Only external
// test packages import it, because it imports all commands.
package clirun
