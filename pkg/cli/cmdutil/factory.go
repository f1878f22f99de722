package cmdutil

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // logins that a kubeconfig may ask for

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Factory has the flags of the tree of commands, and makes of them what commands need.
type Factory struct {
	genericiooptions.IOStreams
	Colours  bool                 // a terminal reads the output, whose user has not asked for none
	Bars     bool                 // a terminal reads the output that can draw bars
	Terminal int                  // columns of the terminal that reads the output; 0: tables may have any width
	Version  string               // of the program
	Log      func(level int)      // starts the log of the client's requests; nil: there is none
	Client   kubernetes.Interface // nil: made from the kubeconfig

	// AllNamespaces is the flag of commands that list pods.
	AllNamespaces bool

	config *genericclioptions.ConfigFlags
	domain string
	system string          // namespace of gpumem
	level  int             // of the log
	warned bool            // that the cluster's policy cannot be read
	hidden []string        // parts of the answer that the user may not read, and that are not reported yet
	noted  map[string]bool // those that were ever in hidden
}

// NewFactory returns one with the defaults of its flags.
func NewFactory(streams genericiooptions.IOStreams, version string) *Factory {
	config := genericclioptions.NewConfigFlags(true)
	config.CacheDir = nil // of discovery, which these commands do not need
	return &Factory{IOStreams: streams, Version: version, config: config, domain: api.DefaultDomain, system: "gpumem-system", noted: make(map[string]bool)}
}

// AddFlags adds the flags that all commands of the tree share.
func (f *Factory) AddFlags(flags *pflag.FlagSet) {
	f.config.AddFlags(flags)
	if f := flags.Lookup("namespace"); f != nil {
		f.Usage = listOnly
	}
	flags.StringVar(&f.domain, "resource-domain", f.domain, "Domain of the resources and annotations that this cluster uses")
	flags.IntVarP(&f.level, "v", "v", f.level, "Level of the log on stderr; levels from 6 include the requests to the API server")
	flags.StringVar(&f.system, "gpumem-namespace", f.system, "Namespace that gpumem is installed in; workloads elsewhere are ignored, even with gpumem's labels")
}

// What --namespace means to commands that list no pods.
const (
	NamespaceOfPod = "Namespace of the pod, unless it is named as NAMESPACE/POD; defaults to the kubeconfig's"
	listOnly       = "List only the pods of this namespace; the sums still count the pods of all namespaces"
	NamespaceOfAll = "Has no effect here: pods of all namespaces count"
	NamespaceOfOne = "Namespace to read if you may not list all, and to check ResourceQuotas of; defaults to the kubeconfig's"
)

// SayNamespace gives a command a help of its own for the shared flag --namespace.
func (f *Factory) SayNamespace(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVarP(f.config.Namespace, "namespace", "n", "", usage)
	// It fails for a flag that does not exist, which a test would show.
	_ = cmd.RegisterFlagCompletionFunc("namespace", f.CompleteNamespaces)
}

// AddAllNamespaces adds --namespace to the help of a command that lists pods, and the flag that
// undoes it.
func (f *Factory) AddAllNamespaces(cmd *cobra.Command) {
	f.SayNamespace(cmd, listOnly)
	cmd.Flags().BoolVarP(&f.AllNamespaces, "all-namespaces", "A", f.AllNamespaces, "List the pods of all namespaces, which is the default")
}

// Namespace is that of the flag alone: the one of the kubeconfig would hide
// pods from people who never asked for it.
func (f *Factory) Namespace() string {
	if f.AllNamespaces || f.config.Namespace == nil {
		return ""
	}
	return *f.config.Namespace
}

// Connect returns the reader of the cluster that the flags name.
func (f *Factory) Connect() (*cluster.Reader, error) {
	if f.Log != nil && f.level > 0 {
		f.Log(f.level)
	}
	r := &cluster.Reader{Client: f.Client, System: f.system}
	var err error
	if r.Names, err = api.NewNames(f.domain); err != nil {
		return nil, fmt.Errorf("--resource-domain: %w", err)
	}
	if r.Client != nil {
		return r, nil
	}
	config, err := f.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	// The pages of a large cluster come one after the other; client-go would
	// make them wait for its default of five in a second. These are kubectl's.
	config.QPS, config.Burst = 50, 300
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.WarningHandler = rest.NewWarningWriter(f.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	r.REST = config
	r.Client, err = kubernetes.NewForConfig(config)
	return r, err
}

// LearnPolicy adds the cluster's policy to the facts, and reports whether it is known. Where it
// cannot be read, a warning says so, once, and the default is taken.
func (f *Factory) LearnPolicy(ctx context.Context, r *cluster.Reader, facts *inspect.Facts) bool {
	policy, err := r.Policy(ctx)
	facts.Policy = cmp.Or(policy, cluster.DefaultPolicy)
	if err != nil && !f.warned && !facts.PodsUnknown { // then nothing is worked out by it
		f.warned = true
		fmt.Fprintf(f.ErrOut, "warning: assuming the policy %s, because the cluster's policy cannot be read: %s\n", cluster.DefaultPolicy, table.Clean(cluster.OneLine(err)))
	}
	return err == nil
}

// Report reads the cluster, and leaves out the pods of namespaces that are not
// asked for.
func (f *Factory) Report(ctx context.Context, r *cluster.Reader, sel cluster.Selection) (inspect.Report, error) {
	nodes, facts, err := r.Load(ctx, sel)
	if err != nil {
		return inspect.Report{}, err
	}
	if len(facts.Waiting) > 0 {
		f.LearnPolicy(ctx, r, &facts)
	}
	f.Limit(sel.Unseen.Parts()...)
	report := inspect.New(nodes, facts)
	if namespace := f.Namespace(); namespace != "" {
		report = report.InNamespace(namespace)
	}
	return report, nil
}

// MayBeLimited is for commands that can answer a user who may read one namespace alone: that of
// the flag, or else of the kubeconfig.
func (f *Factory) MayBeLimited() *cluster.Unseen {
	namespace, _, _ := f.podNamed("") // without one nothing can be listed instead
	return &cluster.Unseen{Namespace: namespace}
}

// Limit has NoteLimits report parts of the answer that are missing for want of a right, each once.
func (f *Factory) Limit(parts ...string) {
	for _, part := range parts {
		if !f.noted[part] {
			f.noted[part] = true
			f.hidden = append(f.hidden, part)
		}
	}
}

// NoteLimits prints one line about the rights that the user lacks. Run calls it after the answer.
func (f *Factory) NoteLimits() {
	if len(f.hidden) > 0 {
		fmt.Fprintf(f.ErrOut, "note: not shown, because you lack the right: %s. %s\n", table.Clean(strings.Join(f.hidden, ", ")), cluster.AskForRole)
		f.hidden = nil
	}
}

// Complain tells what the output lacks. The error says that it lacks something.
func (f *Factory) Complain(problems []inspect.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	for _, p := range problems[:min(len(problems), cluster.MostNamed)] {
		fmt.Fprintf(f.ErrOut, "warning: %s: %s\n", table.Clean(p.Object), table.Clean(p.Message))
	}
	if more := len(problems) - cluster.MostNamed; more > 0 {
		fmt.Fprintf(f.ErrOut, "warning: and %d more; -o json lists them\n", more)
	}
	return errors.New("not everything could be read: the output is incomplete")
}
