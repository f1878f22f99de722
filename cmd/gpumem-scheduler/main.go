// Command gpumem-scheduler is kube-scheduler with the plugin GPUMemory in it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the API client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the build
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(cli.Run(newCommand())) }
