package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

var (
	all  = flag.Bool("all", false, "run all tests, and not the core alone")
	long = flag.Bool("long", false, "try upgrades in every order")
)

// core are the tests that run if neither -all nor -run selects others: where a pod is placed, the limits
// of its containers, what a restart of each part changes, drain, admission, the installation, the
// extender, and the failover of the scheduler.
var core = []string{
	"TestThreeSmallPodsShareOneGPU",
	"TestFreeMemoryOfTwoGPUsDoesNotAddUp",
	"TestContainersOfOnePodShareItsGPU",
	"TestTwoGPUsForOnePod",
	"TestEqualPodsThatAreExchangedAreCorrected",
	"TestLevelMPS",
	"TestLevelKernel",
	"TestKillingEachPartChangesNothingThatRuns",
	"TestACordonedGPUIsLeftAloneAndDrained",
	"TestReservedNames",
	"TestTheAPIServerRefusesWhatTheExtenderCannotRead",
	"TestNotesSayHowToCheck",
	"TestHelmTest",
	"TestANodeWithoutGPUs",
	"TestAttacks",
	"TestTheOtherModeOfTheScheduler",
}

// suite is the cluster that the tests share; nil when this machine cannot run
// one, and then why says so.
var suite struct {
	cluster *cluster.Cluster
	stack   *stack.Stack
	notes   string
	why     string
	since   time.Time // when the release was installed that is there at the end
}

// installed are the values of the chart with which the cluster of the suite
// starts.
var installed = []string{
	"devicePlugin.extraArgs={--probe-interval=1s}", // a GPU that has failed is back after three good probes
	"devicePlugin.cgroupRoot=" + simulatedCgroups,  // where nothing is until a test puts it there
	"cores=true",
	"labelPods=true",
	"extender.page=true",
	"admission.setSchedulerName=false", // tests send pods past gpumem; TestOptionalPolicies has the policy
}

func TestMain(m *testing.M) {
	flag.Parse()
	if selected := flag.Lookup("test.run").Value.String(); !*all && selected == "" {
		if err := flag.Set("test.run", "^(TestCoreNamesTests|"+strings.Join(core, "|")+")$"); err != nil {
			panic(err)
		}
	}
	// Tests that expect warnings of the API server read them themselves.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if testing.Short() {
		suite.why = "the tests on a real cluster are left out with -short"
		return m.Run(), nil
	}
	if err := cluster.CheckHost(); err != nil {
		suite.why = "no real cluster on this machine: " + err.Error()
		fmt.Fprintf(os.Stderr, "%s\nleft out: the tests on a cluster, of which the core is %s\n", suite.why, strings.Join(core, " "))
		return m.Run(), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Minute)
	defer cancel()
	log := stack.Progress(os.Stderr)
	defer func() {
		if suite.cluster == nil {
			return
		}
		if code != 0 {
			suite.stack.SaveLogs(ctx, suite.cluster)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = errors.Join(err, suite.cluster.Stop(ctx))
	}()
	if err := start(ctx, log); err != nil {
		return 1, err
	}
	fmt.Fprintln(log, "the cluster is ready for the tests")
	code = m.Run()
	if err := checkRights(ctx); err != nil {
		return 1, fmt.Errorf("rights:\n%w", err)
	}
	return code, nil
}

func start(ctx context.Context, log io.Writer) error {
	var err error
	if suite.stack, err = stack.Build(ctx, "e2e", log); err != nil {
		return err
	}
	config := cluster.Config{Name: "e2e", Log: log, AuditPolicy: []byte(auditPolicy)}
	if config.Nodes, err = stack.TwoNodes(); err != nil {
		return err
	}
	linked, err := stack.Node("node3", fakenvml.DGX1("node3")...)
	if err != nil {
		return err
	}
	linked.Taints = []v1.Taint{{Key: "nvidia.com/gpu", Effect: v1.TaintEffectNoSchedule}} // for tests of its own
	config.Nodes = append(config.Nodes, linked, cluster.Node{Name: withoutGPUs})
	if suite.cluster, err = cluster.Start(ctx, config); err != nil {
		return err
	}
	if err := suite.stack.LoadImages(ctx, suite.cluster); err != nil {
		return err
	}
	suite.notes, err = suite.stack.Install(ctx, suite.cluster, installed...)
	return err
}
