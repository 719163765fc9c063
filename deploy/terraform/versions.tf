# The AWS side of `spot-handler queue`: an SQS queue, the EventBridge rules that feed it,
# and the role that may read it. One module for each cluster and region:
#
#   module "spot_handler" {
#     source       = "./deploy/terraform"
#     cluster_name = "my-cluster"
#   }
#
# deploy/aws.md explains the choices; deploy/cloudformation makes the same things. Region
# and account are those of the provider that the module gets.

terraform {
  required_version = ">= 1.3"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.30" # the first with everything that is used here
    }
  }
}

data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_caller_identity" "current" {}

locals {
  partition = data.aws_partition.current.partition
  region    = data.aws_region.current.id
  account   = data.aws_caller_identity.current.account_id
  name      = coalesce(var.name, "spot-handler-${var.cluster_name}")
}
