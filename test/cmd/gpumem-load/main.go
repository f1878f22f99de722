// Command gpumem-load measures what gpumem costs, see package load.
package main

import (
	"k8s.io/klog/v2"

	"github.com/gpumem/gpumem/test/cmd/internal/command"
	"github.com/gpumem/gpumem/test/load"
)

func main() {
	klog.SetLogger(klog.Logger{})
	command.Main("gpumem-load", load.Run)
}
