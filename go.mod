module spot-handler

go 1.26.0

// A direct dependency needs a reason, which stands beside it. Heavy modules that only tests need have
// modules of their own below e2e.
require (
	github.com/Masterminds/sprig/v3 v3.3.0 // the functions of webhooks' templates
	github.com/aws/aws-sdk-go-v2 v1.47.6 // AWS's own client
	github.com/aws/aws-sdk-go-v2/config v1.33.14 // AWS's own client
	github.com/aws/aws-sdk-go-v2/feature/ec2/imds v1.20.6 // AWS's own client
	github.com/aws/aws-sdk-go-v2/service/autoscaling v1.79.3 // AWS's own client
	github.com/aws/aws-sdk-go-v2/service/ec2 v1.344.0 // AWS's own client
	github.com/aws/aws-sdk-go-v2/service/sqs v1.52.9 // AWS's own client
	github.com/aws/smithy-go v1.28.8 // the SDK's error types, and how bodies of its requests are sent
	github.com/cenkalti/backoff/v5 v5.0.3 // exponential backoff with jitter
	github.com/google/go-cmp v0.7.0 // tests only: differences
	github.com/prometheus/client_golang v1.25.0 // metrics
	github.com/prometheus/client_model v0.6.3 // its data model: metrics of a tenure, and those that tests read
	github.com/rs/zerolog v1.35.1 // the log
	github.com/spf13/cobra v1.10.2 // commands, help and completion as Kubernetes users know them
	github.com/spf13/pflag v1.0.10 // their flags
	golang.org/x/sync v0.24.0 // errgroup, semaphore, singleflight
	golang.org/x/term v0.46.0 // whether there is a terminal, and its width
	golang.org/x/time v0.14.0 // rates: how fast large answers are read, and what one node can make us do
	k8s.io/api v0.36.3 // types of Kubernetes' objects
	k8s.io/apimachinery v0.36.3 // types of Kubernetes' objects
	k8s.io/client-go v0.36.3 // requests, watches, work queues; not its clientsets nor its recorder of Events, which cost 10 MiB of memory, and keep 1 MB of OpenAPI schemas in the program
	k8s.io/component-helpers v0.36.3 // what a pod requests, as the scheduler counts it
	k8s.io/klog/v2 v2.140.0 // client-go's log, redirected to ours
	k8s.io/utils v0.0.0-20260210185600-b8788abfbbc2 // ptr: fields of the API that may be nil; lru: what a dry run remembers; client-go needs it anyway
	sigs.k8s.io/json v0.0.0-20250730193827-2d320260d730 // apimachinery's own decoder: it refuses a name that comes twice
	sigs.k8s.io/yaml v1.6.0 // what migrate is given, and -o yaml; in tests, the chart and what it renders
)

require (
	dario.cat/mergo v1.0.1 // indirect
	github.com/Masterminds/goutils v1.1.1 // indirect
	github.com/Masterminds/semver/v3 v3.3.0 // indirect
	github.com/aws/aws-sdk-go-v2/credentials v1.20.14 // indirect
	github.com/aws/aws-sdk-go-v2/internal/configsources v1.5.9 // indirect
	github.com/aws/aws-sdk-go-v2/internal/endpoints/v2 v2.8.9 // indirect
	github.com/aws/aws-sdk-go-v2/internal/v4a v1.5.9 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding v1.13.24 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/presigned-url v1.14.9 // indirect
	github.com/aws/aws-sdk-go-v2/service/signin v1.12.2 // indirect
	github.com/aws/aws-sdk-go-v2/service/sso v1.39.2 // indirect
	github.com/aws/aws-sdk-go-v2/service/ssooidc v1.44.2 // indirect
	github.com/aws/aws-sdk-go-v2/service/sts v1.51.7 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/cpuguy83/go-md2man/v2 v2.0.6 // indirect
	github.com/davecgh/go-spew v1.1.2-0.20180830191138-d8f796af33cc // indirect
	github.com/emicklei/go-restful/v3 v3.13.0 // indirect
	github.com/fxamacker/cbor/v2 v2.9.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-openapi/jsonpointer v0.21.0 // indirect
	github.com/go-openapi/jsonreference v0.20.2 // indirect
	github.com/go-openapi/swag v0.23.0 // indirect
	github.com/google/gnostic-models v0.7.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/huandu/xstrings v1.5.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/josharian/intern v1.0.0 // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/mailru/easyjson v0.7.7 // indirect
	github.com/mattn/go-colorable v0.1.14 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/mitchellh/copystructure v1.2.0 // indirect
	github.com/mitchellh/reflectwalk v1.0.2 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.3-0.20250322232337-35a7c28c31ee // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/russross/blackfriday/v2 v2.1.0 // indirect
	github.com/shopspring/decimal v1.4.0 // indirect
	github.com/spf13/cast v1.7.0 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/crypto v0.57.0 // indirect
	golang.org/x/net v0.59.0 // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	gopkg.in/evanphx/json-patch.v4 v4.13.0 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
	k8s.io/kube-openapi v0.0.0-20260317180543-43fb72c5454a // indirect
	sigs.k8s.io/randfill v1.0.0 // indirect
	sigs.k8s.io/structured-merge-diff/v6 v6.3.3 // indirect
)
