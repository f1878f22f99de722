// Package clitest has the objects of fake clusters for the tests of commands: nodes with GPU memory,
// pods that request it, and gpumem's own workloads. Only tests import it.
package clitest
