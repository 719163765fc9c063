

# What a training script does around the recipe: it trains, and saves once.
import sys, time

dist.init_process_group()
listen()
step, saved = 0, False
while not saved:
    step += 1
    time.sleep(0.01 * (1 + dist.RANK))
    if any_noticed("cpu"):
        print("saved at step", step, flush=True)
        saved = True
