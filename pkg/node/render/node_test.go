package render_test

import (
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/plugintest/process"
)

var (
	pod       = plugintest.Pod
	app       = plugintest.App
	container = plugintest.Container
	newNode   = process.New
)

const (
	uuidA = plugintest.GPUA
	uuidB = plugintest.GPUB
)

type node = process.Node
