package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/images"
)

func newCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "gpumem-cluster",
		Short: "Run a Kubernetes cluster with simulated GPUs on this machine",
		Long: `gpumem-cluster runs a Kubernetes cluster on this Linux machine: etcd, the
control plane, and nodes with containerd, kubelet and kube-proxy, each node in
namespaces of its own. All is built from pinned Go modules and kept in
$GPUMEM_CACHE (by default gpumem in the user's cache folder). It needs root,
Go and a C compiler; runc and nftables are installed when they are missing.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		// So that kubectl and helm, which take all flags that follow their
		// names, can be told another cluster before.
		TraverseChildren: true,
	}
	cmd.PersistentFlags().StringVar(&name, "name", "demo", "name of the cluster")
	cmd.AddCommand(
		upCommand(&name), downCommand(&name), statusCommand(&name), buildCommand(),
		imageCommand(), loadImageCommand(&name), loadBuiltinCommand(&name), setGPUsCommand(&name), kubeconfigCommand(&name),
		passThrough("kubectl ARGUMENTS...", "Run the cluster's kubectl", &name, func(_ context.Context, c *cluster.Cluster) (string, error) {
			return c.Kubectl()
		}),
		passThrough("helm ARGUMENTS...", "Run a helm for the cluster", &name, func(ctx context.Context, c *cluster.Cluster) (string, error) {
			return c.Helm(ctx, os.Stderr)
		}),
		execNodeCommand(&name),
		processCommand("kill PROCESS...", "Kill processes of the cluster, such as kubelet@node1", &name, (*cluster.Cluster).Kill),
		processCommand("start PROCESS...", "Start processes of the cluster that were killed", &name, func(c *cluster.Cluster, _ context.Context, process string) error {
			return c.StartProcess(process)
		}),
		processCommand("restart PROCESS...", "Kill processes of the cluster and start them again", &name, (*cluster.Cluster).Restart),
		logsCommand(&name), forwardCommand(),
	)
	return cmd
}

// attach returns the running cluster called name.
func attach(name string) (*cluster.Cluster, error) {
	dir, err := cluster.DefaultStateDir(name)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Attach(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no cluster %q; start one with: gpumem-cluster up --name %s", name, name)
	}
	return c, err
}

// on has a command run on the cluster called name, which has to be up.
func on(name *string, run func(cmd *cobra.Command, c *cluster.Cluster, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := attach(*name)
		if err != nil {
			return err
		}
		return run(cmd, c, args)
	}
}

func upCommand(name *string) *cobra.Command {
	var nodes []string
	var port int
	var noScheduler bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, or say that it runs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if c, err := attach(*name); err == nil {
				if err := c.WaitReady(ctx); err != nil {
					return err
				}
				fmt.Printf("The cluster %s runs already.\nexport KUBECONFIG=%s\n", *name, c.Kubeconfig())
				return nil
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			config := cluster.Config{Name: *name, Port: port, NoScheduler: noScheduler, Forwarder: []string{self, "forward"}, Log: os.Stderr}
			for _, value := range nodes {
				n, err := parseNode(value)
				if err != nil {
					return err
				}
				config.Nodes = append(config.Nodes, n)
			}
			c, err := cluster.Start(ctx, config)
			if err != nil {
				return err
			}
			fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig())
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&nodes, "node", []string{"node1", "node2"}, "a node: NAME, or NAME:FILE with the description of its simulated GPUs; repeat for more nodes")
	cmd.Flags().IntVar(&port, "port", 0, "port of the API server on 127.0.0.1 (default any free one)")
	cmd.Flags().BoolVar(&noScheduler, "no-scheduler", false, "leave the default scheduler out")
	return cmd
}

func parseNode(value string) (cluster.Node, error) {
	name, file, found := strings.Cut(value, ":")
	n := cluster.Node{Name: name}
	if found {
		var err error
		if n.GPUs, err = os.ReadFile(file); err != nil {
			return n, fmt.Errorf("GPUs of node %s: %w", name, err)
		}
	}
	return n, nil
}

func downCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and remove all of it, whatever is left",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := cluster.DefaultStateDir(*name)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			return cluster.Remove(ctx, dir)
		},
	}
}

func statusCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the processes of the cluster and where its files are",
		Args:  cobra.NoArgs,
		RunE: on(name, func(_ *cobra.Command, c *cluster.Cluster, _ []string) error {
			fmt.Printf("%-24s %8s  %s\n", "PROCESS", "PID", "LOG")
			for _, process := range c.Processes() {
				pid := "down"
				if number, running := c.Running(process); running {
					pid = fmt.Sprint(number)
				}
				fmt.Printf("%-24s %8s  %s\n", process, pid, c.LogFile(process))
			}
			for _, node := range c.Nodes() {
				fmt.Printf("node %s: %s\n", node, c.NodeDir(node))
			}
			fmt.Printf("export KUBECONFIG=%s\n", c.Kubeconfig())
			return nil
		}),
	}
}

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build everything that a cluster may need",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cluster.Build(cmd.Context(), cluster.Config{Log: os.Stderr})
		},
	}
}

func imageCommand() *cobra.Command {
	var image images.Image
	var output string
	var linked bool
	cmd := &cobra.Command{
		Use:   "image PROGRAM...",
		Short: "Write the archive of an image with some programs in /usr/local/bin",
		Long: `Write the archive of an image that holds the given programs in /usr/local/bin
and the user nonroot (65532). The first program is its entrypoint.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			image.Entrypoint = []string{"/usr/local/bin/" + filepath.Base(args[0])}
			image.Files = append(images.Programs(args...), images.Nonroot()...)
			if linked {
				libraries, err := images.SharedLibraries(args...)
				if err != nil {
					return err
				}
				image.Files = append(image.Files, libraries...)
			}
			return image.WriteFile(output)
		},
	}
	cmd.Flags().StringVarP(&image.Name, "tag", "t", "", "name of the image, with its tag")
	cmd.Flags().StringVarP(&output, "output", "o", "", "the archive to write")
	cmd.Flags().StringVar(&image.User, "user", "65532:65532", "user that the program runs as")
	cmd.Flags().StringArrayVar(&image.Env, "env", nil, "a variable NAME=VALUE of the environment; repeat for more")
	cmd.Flags().BoolVar(&linked, "libraries", false, "add the shared libraries of this machine that the programs are linked to")
	for _, name := range []string{"tag", "output"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // there is no such flag
		}
	}
	return cmd
}

func loadImageCommand(name *string) *cobra.Command {
	var nodes []string
	cmd := &cobra.Command{
		Use:   "load-image ARCHIVE...",
		Short: "Put images on the nodes",
		Args:  cobra.MinimumNArgs(1),
		RunE: on(name, func(cmd *cobra.Command, c *cluster.Cluster, args []string) error {
			for _, archive := range args {
				if err := c.LoadImage(cmd.Context(), archive, nodes...); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().StringSliceVar(&nodes, "nodes", nil, "only these nodes (default all)")
	return cmd
}

func loadBuiltinCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:       "load-builtin sample|kube-scheduler...",
		Short:     "Put images that come with the cluster on the nodes",
		Long:      "Put images that come with the cluster on the nodes:\n  sample          " + cluster.SampleImage + "\n  kube-scheduler  " + cluster.SchedulerImage,
		ValidArgs: []string{"sample", "kube-scheduler"},
		Args:      cobra.MatchAll(cobra.MinimumNArgs(1), cobra.OnlyValidArgs),
		RunE: on(name, func(cmd *cobra.Command, c *cluster.Cluster, args []string) error {
			files := map[string]func() (string, error){
				"sample":         c.SampleImageFile,
				"kube-scheduler": func() (string, error) { return c.SchedulerImageFile(cmd.Context()) },
			}
			for _, arg := range args {
				archive, err := files[arg]()
				if err != nil {
					return err
				}
				if err := c.LoadImage(cmd.Context(), archive); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

func setGPUsCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "set-gpus NODE FILE",
		Short: "Replace the description of a node's simulated GPUs",
		Args:  cobra.ExactArgs(2),
		RunE: on(name, func(_ *cobra.Command, c *cluster.Cluster, args []string) error {
			description, err := os.ReadFile(args[1])
			if err != nil {
				return err
			}
			return c.SetGPUs(args[0], description)
		}),
	}
}

func kubeconfigCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the name of the cluster's kubeconfig file",
		Args:  cobra.NoArgs,
		RunE: on(name, func(_ *cobra.Command, c *cluster.Cluster, _ []string) error {
			fmt.Println(c.Kubeconfig())
			return nil
		}),
	}
}

// passThrough makes a command that runs a client of the cluster. All that
// follows its name is the client's.
func passThrough(use, short string, name *string, program func(context.Context, *cluster.Cluster) (string, error)) *cobra.Command {
	return &cobra.Command{
		Use:                use,
		Short:              short,
		Long:               short + ". Name another cluster than demo before: gpumem-cluster --name NAME " + use,
		DisableFlagParsing: true,
		RunE: on(name, func(cmd *cobra.Command, c *cluster.Cluster, args []string) error {
			path, err := program(cmd.Context(), c)
			if err != nil {
				return err
			}
			child := exec.CommandContext(cmd.Context(), path, args...)
			child.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"))
			child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
			return child.Run()
		}),
	}
}

func execNodeCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "exec-node NODE [--] COMMAND...",
		Short: "Run a command in the namespaces of a node",
		Args:  cobra.MinimumNArgs(2),
		RunE: on(name, func(cmd *cobra.Command, c *cluster.Cluster, args []string) error {
			child := exec.CommandContext(cmd.Context(), args[1], args[2:]...)
			child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
			return c.RunOnNode(args[0], child)
		}),
	}
}

func processCommand(use, short string, name *string, act func(*cluster.Cluster, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.MinimumNArgs(1),
		RunE: on(name, func(cmd *cobra.Command, c *cluster.Cluster, args []string) error {
			for _, process := range args {
				if err := act(c, cmd.Context(), process); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

func logsCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "logs PROCESS",
		Short: "Print the log of a process of the cluster",
		Args:  cobra.ExactArgs(1),
		RunE: on(name, func(_ *cobra.Command, c *cluster.Cluster, args []string) error {
			content, err := os.ReadFile(c.LogFile(args[0]))
			if err != nil {
				return err
			}
			_, err = os.Stdout.Write(content)
			return err
		}),
	}
}

// forwardCommand is what "up" leaves running.
func forwardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "forward FOLDER",
		Short:  "Forward connections to the API server",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cluster.Forward(cmd.Context(), args[0])
		},
	}
}
