import numpy as np


class Reach:
    limits = {"low": [0, 0], "high": [1, 1], "max_speed": [2, 2]}
    robot = {"kind": "joints", "names": ["x", "y"], **limits, "control_hz": 10}
    tasks = {"reach-red": "move to the red mark", "reach-blue": {"instruction": "move to the blue mark", "horizon": 40}}
    horizon = 30

    def __init__(self, task, cameras, image_size):
        self.colour, self.side = {"reach-red": 0, "reach-blue": 2}[task], image_size

    def reset(self, index, seed):
        draw = np.random.default_rng([index, seed])
        self.at, self.goal = draw.uniform(0.1, 0.9, (2, 2))

    def step(self, action):
        self.at = np.clip(np.clip(action, 0, 1), self.at - 0.2, self.at + 0.2)

    def state(self):
        return self.at

    def success(self):
        return np.abs(self.at - self.goal).max() < 0.05

    def images(self):
        image = np.full((self.side, self.side, 3), 255, np.uint8)
        for place, colour in ((self.goal, self.colour), (self.at, 1)):
            row, column = (place * (self.side - 6)).astype(int)
            image[row : row + 6, column : column + 6] = 60 * np.eye(3, dtype=np.uint8)[colour]
        return {"scene": image}

    def expert(self):
        return np.clip(self.goal, self.at - 0.1, self.at + 0.1)
