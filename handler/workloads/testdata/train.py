

# What a training script does around the recipe: it trains, and saves. The ranks are not equally fast.
import time

dist.init_process_group()
listen()
step = 0
while True:
    step += 1
    time.sleep(0.01 * (1 + dist.RANK))
    if any_noticed("cpu"):
        print("saved at step", step, flush=True)
